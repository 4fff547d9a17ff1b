"""Finds the fastest training configuration that fits a machine and keeps the learning the same.

Importing this package costs nothing: every public name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.configuration import Checkpointing as Checkpointing
    from autotune.configuration import Configuration as Configuration
    from autotune.errors import AutotuneError as AutotuneError
    from autotune.errors import NothingFeasible as NothingFeasible
    from autotune.errors import Unconfirmed as Unconfirmed
    from autotune.errors import UsageError as UsageError
    from autotune.errors import WorkloadError as WorkloadError
    from autotune.goal import Budget as Budget
    from autotune.goal import Goal as Goal
    from autotune.library.call import tune as tune
    from autotune.library.recommendation import Recommendation as Recommendation
    from autotune.library.recommendation import load as load
    from autotune.runtime.callback import LocalSGDCallback as LocalSGDCallback
    from autotune.runtime.fused import FusedLocalSGD as FusedLocalSGD

_HOMES = {
    "AutotuneError": "autotune.errors",
    "Budget": "autotune.goal",
    "Checkpointing": "autotune.configuration",
    "Configuration": "autotune.configuration",
    "FusedLocalSGD": "autotune.runtime.fused",
    "Goal": "autotune.goal",
    "LocalSGDCallback": "autotune.runtime.callback",
    "NothingFeasible": "autotune.errors",
    "Recommendation": "autotune.library.recommendation",
    "Unconfirmed": "autotune.errors",
    "UsageError": "autotune.errors",
    "WorkloadError": "autotune.errors",
    "load": "autotune.library.recommendation",
    "tune": "autotune.library.call",
}
"""The module that each public name lives in."""

__all__ = [
    "AutotuneError",
    "Budget",
    "Checkpointing",
    "Configuration",
    "FusedLocalSGD",
    "Goal",
    "LocalSGDCallback",
    "NothingFeasible",
    "Recommendation",
    "Unconfirmed",
    "UsageError",
    "WorkloadError",
    "__version__",
    "load",
    "tune",
]


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
