"""A child that fences itself, then asks for far more than the fence lets through."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from probes.climbing import _fence, _private_memory


def main(arguments: list[str], out: TextIO) -> int:
    """Says whether the memory was refused, and how gladly the kernel would end it."""
    _fence(int(arguments[0]))
    try:
        _private_memory(4 * int(arguments[0]))
    except (OSError, MemoryError):
        out.write("refused\n")
    out.write(Path("/proc/self/oom_score_adj").read_text())
    return 0
