"""How findings say sizes and errors."""

from __future__ import annotations


def first_line(error: object) -> str:
    """What an error says, without its further lines and full stop; its kind if it says nothing."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def mib(num_bytes: int) -> str:
    """A size in MiB, rounded down, its thousands apart: `30 100 MiB`."""
    return f"{num_bytes // 2**20:,} MiB".replace(",", " ")
