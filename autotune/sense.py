"""Whether what a journal tells can be: what is shown divides by rates and times, and draws them.

A journal that was changed by hand, or written beside a clock that stood still, must not end whoever
shows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autotune.events import Confirmed, TrialProgressed
from autotune.outcome import Failed, Measured, Outcome


def possible(outcome: Outcome) -> Outcome:
    """The outcome, or a failure in the place of readings that no trial can have."""
    if not isinstance(outcome, Measured):
        return outcome
    faults = list(_impossible(outcome))
    if not faults:
        return outcome
    return Failed(
        cause=f"Its readings cannot be: {', '.join(faults)}.",
        remedy="The journal was changed, or a clock stood still: measure it again.",
    )


def _impossible(measured: Measured) -> Iterator[str]:
    if not _is_rate(measured.samples_per_s):
        yield f"{measured.samples_per_s:g} samples/s"
    if not all(map(math.isfinite, measured.samples_per_s_ci95)):
        yield "an interval without end"
    times_s = measured.speed.step_times_s
    if not times_s:
        yield "no timed step"
    elif not all(time_s >= 0 for time_s in times_s) or not _is_rate(sum(times_s)):
        yield f"steps of {sum(times_s):g} s"
    num_bytes = min(measured.memory.reserved_bytes, measured.memory.total_bytes)
    if num_bytes < 0:
        yield f"{num_bytes} B of memory"


def is_possible(event: TrialProgressed | Confirmed) -> bool:
    """Whether these figures may have been measured."""
    match event:
        case TrialProgressed():
            rate, num_bytes = event.samples_per_s, event.memory_bytes
            is_speed = rate is None or (math.isfinite(rate) and rate >= 0)
            return is_speed and (num_bytes is None or num_bytes >= 0)
        case Confirmed():
            rates = (event.samples_per_s, event.baseline_samples_per_s, event.speedup)
            ends = (
                *event.speedup_ci95,
                *event.samples_per_s_ci95,
                *event.baseline_samples_per_s_ci95,
            )
            sizes = [m.total_bytes for m in (event.memory, event.baseline_memory) if m is not None]
            return all(map(_is_rate, rates)) and all(map(math.isfinite, ends)) and min(sizes) >= 0


def _is_rate(value: float) -> bool:
    return math.isfinite(value) and value > 0
