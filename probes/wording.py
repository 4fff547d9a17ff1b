"""How findings say sizes and errors."""

from __future__ import annotations


def first_line(error: object) -> str:
    """What an error says, without its further lines and full stop; its kind if it says nothing."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def mib(num_bytes: int) -> str:
    """A size in MiB, rounded down, its thousands apart: `30 100 MiB`."""
    return f"{num_bytes // 2**20:,} MiB".replace(",", " ")


def size(num_bytes: int) -> str:
    """The size of a message in whole units where it is one: `64 KiB`, `4 MiB`, `1500 bytes`."""
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= unit and num_bytes % unit == 0:
            return f"{num_bytes // unit} {name}"
    return f"{num_bytes} bytes"
