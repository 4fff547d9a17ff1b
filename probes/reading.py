"""What every probe answers with: measured numbers, and what is to be said in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["bytes", "bytes_per_s", "flop_per_s", "s", "count", "W", "celsius"]

CONTEXT = "device context"
"""Name of the reading of what a process takes of a device outside torch's allocator."""
WORKSPACES = "matrix workspaces"
"""Name of the reading of what the libraries for matrix products keep inside of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One measured number with its unit, samples and spread."""

    name: str
    """What was measured, for example `memory bandwidth` or `matmul bfloat16`."""
    unit: Unit
    value: float
    """Median of the samples."""
    samples: tuple[float, ...] = ()
    half_iqr: float = 0.0
    """Half the distance between the quartiles of the samples."""
    note: str | None = None
    """What a reader must know to use the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about the machine that is not a number: a cause and what follows from it."""

    cause: str
    remedy: str | None = None
    is_problem: bool = True
    """False for a plain remark."""
    lasts: bool = False
    """It holds until hardware, driver or libraries change; False where a minute may change it."""
