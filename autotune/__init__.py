"""Finds the fastest training configuration that fits a machine and keeps the learning the same.

Importing this package costs nothing: every public name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.errors import AutotuneError as AutotuneError
    from autotune.goal import Budget as Budget
    from autotune.goal import Goal as Goal

_HOMES = {
    "AutotuneError": "autotune.errors",
    "Budget": "autotune.goal",
    "Goal": "autotune.goal",
}
"""The module that each public name lives in."""

__all__ = ["AutotuneError", "Budget", "Goal", "__version__"]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("autotune-advisor")
        except PackageNotFoundError:
            return "unknown"
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
