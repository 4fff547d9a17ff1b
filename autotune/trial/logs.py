"""The files that take what workers and trials print."""

from __future__ import annotations

import os
from pathlib import Path

TAIL_BYTES = 8192


def end_of(path: Path | None) -> int:
    """Where the next line of a log will begin; 0 where there is no log yet."""
    try:
        return path.stat().st_size if path is not None else 0
    except OSError:
        return 0


def tail(path: Path | None, since: int = 0) -> str:
    """The last part of a log, as text whatever bytes it holds.

    Args:
        path: None reads as empty, and so does a file that is not there.
        since: Nothing before this position is read.
    """
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            file.seek(max(since, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
