"""Bars and sparklines: one row each."""

from __future__ import annotations

import math
from collections.abc import Sequence

_LEVELS = "▁▂▃▄▅▆▇█"
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def bar(part: float, cells: int) -> str:
    """A bar of so many cells, filled by that part, to an eighth of a cell."""
    known = part if math.isfinite(part) else 0.0
    eighths = round(max(0.0, min(1.0, known)) * cells * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + _EIGHTHS[rest]).ljust(cells, "░")


def sparkline(values: Sequence[float], cells: int | None = None) -> str:
    """Values as columns one cell wide, the newest ones where not all fit."""
    known = [value for value in values if math.isfinite(value)]
    shown = known[-cells:] if cells else known
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if high == low:
        return _LEVELS[3] * len(shown)
    step = (high - low) / (len(_LEVELS) - 1)
    return "".join(_LEVELS[round((value - low) / step)] for value in shown)
