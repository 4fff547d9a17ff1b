"""Files that are being written, and whether they came to be."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """Files that are being written."""

    place: Path
    """Where to."""
    command: str
    """The command that writes them."""
    before: tuple[int, int] | None
    """What was known of the last of them before."""

    @classmethod
    def begun(cls, place: Path, command: str) -> Writing:
        """Nothing is written yet."""
        return cls(place=place, command=command, before=_stamp(place))

    @property
    def is_done(self) -> bool:
        """Whether they are there all the same: the last one is a new one."""
        return _stamp(self.place) not in (None, self.before)


def _stamp(place: Path) -> tuple[int, int] | None:
    # Written last, and moved there whole.
    try:
        status = os.stat(place / "recommendation.json")
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
