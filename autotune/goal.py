"""What a run is after, and what it may spend on finding it."""

from __future__ import annotations

import math
from dataclasses import dataclass

MARGIN_FRACTION = 0.05
"""Part of the memory limit that stays free."""
MARGIN_BYTES_ON_DEVICE = 256 * 1024**2
"""The least that stays free on a device, whose allocator works in large steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a recommended configuration must keep, and what bounds it.

    Example:
        >>> autotune.Goal(global_batch_size=64, memory_limit_bytes=6 * 2**30).global_batch_size
        64
    """

    global_batch_size: int | None = None
    """Samples per optimizer step over all ranks; None keeps the baseline's."""
    memory_limit_bytes: int | None = None
    """Bytes that the training process may occupy; None is what the machine has free."""
    global_batch_size_range: tuple[int, int] | None = None
    """Smallest and largest global batch size that may be recommended instead, by what a sample
    teaches at another one; None keeps the global batch size."""

    def __post_init__(self) -> None:
        if self.global_batch_size_range is not None:
            if not _is_pair(self.global_batch_size_range):
                raise TypeError(
                    "global_batch_size_range is a pair of whole numbers, not "
                    f"{self.global_batch_size_range!r}."
                )
            low, high = self.global_batch_size_range
            if not 1 <= low <= high:
                raise ValueError(
                    f"global_batch_size_range must ascend from 1, not {low} to {high}."
                )
        for name in ("global_batch_size", "memory_limit_bytes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise TypeError(f"{name} is a whole number, not {value!r}.")
        if self.global_batch_size is not None and self.global_batch_size < 1:
            raise ValueError(f"global_batch_size must be at least 1, not {self.global_batch_size}.")
        if self.memory_limit_bytes is not None and self.memory_limit_bytes < 1:
            raise ValueError(
                f"memory_limit_bytes must be at least 1, not {self.memory_limit_bytes}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run may spend. Confirmation is paid from the same budget and kept in reserve.

    Example:
        >>> autotune.Budget(seconds=300.0).trials
        40
    """

    trials: int = 40
    """Search trials, the baseline included; confirmation is not counted."""
    seconds: float = 600.0
    """Wall time from the start of the engine to the recommendation."""

    def __post_init__(self) -> None:
        if not isinstance(self.trials, int) or isinstance(self.trials, bool):
            raise TypeError(f"trials is a whole number, not {self.trials!r}.")
        if not isinstance(self.seconds, int | float) or not math.isfinite(self.seconds):
            raise TypeError(f"seconds is a number, not {self.seconds!r}.")
        if self.trials < 1:
            raise ValueError(f"trials must be at least 1, not {self.trials}.")
        if self.seconds <= 0:
            raise ValueError(f"seconds must be positive, not {self.seconds}.")


def _is_pair(value: object) -> bool:
    # A list is what JSON makes of a pair.
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(isinstance(number, int) and not isinstance(number, bool) for number in value)
    )


def usable_bytes(limit_bytes: int, *, on_device: bool) -> int:
    """What may be filled of a limit once the margin is left free."""
    margin = int(limit_bytes * MARGIN_FRACTION)
    if on_device:
        margin = max(margin, MARGIN_BYTES_ON_DEVICE)
    return max(0, limit_bytes - margin)


def limit_to_fill(num_bytes: int, *, on_device: bool) -> int:
    """The least limit of which so many bytes may be filled."""
    limit_bytes = math.ceil(num_bytes / (1 - MARGIN_FRACTION))
    return max(limit_bytes, num_bytes + MARGIN_BYTES_ON_DEVICE) if on_device else limit_bytes
