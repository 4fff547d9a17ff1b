"""Warnings to whoever trains: once for all ranks, at the line of theirs that led to them."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

_LIBRARIES = frozenset(
    {"autotune", "transformers", "accelerate", "torch", "peft", "trl", "contextlib", "functools"}
)
"""Packages whose lines nobody can mend who reads the warning."""


def tell(text: str, *, is_first: bool) -> None:
    """Warns at the innermost line that belongs to no library.

    Args:
        text: What to say.
        is_first: Whether this is the first rank; the others would say the same.
    """
    if not is_first:
        return
    frame = sys._getframe(1)
    level = 2
    while _is_of_a_library(frame) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(f"autotune: {text}", stacklevel=level)


def _is_of_a_library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _LIBRARIES
