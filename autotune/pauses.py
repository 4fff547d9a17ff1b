"""The run's one clock: it stands still while nobody works on the run, and so does the budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from autotune.events import HoldChanged, Record, RunEnded, RunStarted, TrialFinished


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A time in which nobody worked: between two engines, or while new trials were held back."""

    start_s: float
    """When it began, in seconds since the run's start."""
    end_s: float | None = None
    """None while it lasts."""


def worked_s(t_s: float, pauses: Iterable[Pause]) -> float:
    """Seconds that were worked till then, over all engines.

    Args:
        t_s: Seconds since the run's start, as records have them.
        pauses: Those of the run.
    """
    paused_s = sum(
        max(0.0, (t_s if pause.end_s is None else min(t_s, pause.end_s)) - pause.start_s)
        for pause in pauses
    )
    return max(0.0, t_s - paused_s)


def after(
    pauses: tuple[Pause, ...], record: Record, *, told_s: float, waits: bool
) -> tuple[Pause, ...]:
    """The pauses after a record; the same object where they are the same.

    Args:
        pauses: Those before it.
        record: Any but progress.
        told_s: Time of the record before it.
        waits: Whether new trials are held back after it, and none runs.
    """
    t_s = record.t_s
    is_paused = bool(pauses) and pauses[-1].end_s is None
    match record.event:
        case RunStarted() | RunEnded() | HoldChanged(held=False) if is_paused:
            *before, last = pauses
            return (*before, replace(last, end_s=max(last.start_s, t_s)))
        case RunStarted(resumed=True) if told_s < t_s:
            # What a killed engine did after its last word is known to nobody.
            return (*pauses, Pause(start_s=told_s, end_s=t_s))
        case HoldChanged(held=True) | TrialFinished() if waits and not is_paused:
            # A trial that runs is not held back: the engine waits once it has ended.
            return (*pauses, Pause(start_s=t_s))
    return pauses
