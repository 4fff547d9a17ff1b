"""What an engine writes to a trial of the study when it ended, and what others make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from optuna.trial import FrozenTrial, Trial, TrialState
from pydantic import Field, TypeAdapter, ValidationError

from autotune.events import Document, Origin
from autotune.outcome import Failed, Measured, Outcome, OutOfMemory, Purpose, Stopped
from autotune.search.evidence.finished import Arrival, FinishedTrial
from autotune.search.evidence.history import History
from autotune.search.studies.sampler import CONSTRAINT_ATTRIBUTE, Axes, has_set_constraint

ENTRY = "trial"
"""User attribute of a finished trial: its run, number, purpose, configuration and outcome."""
SMALLEST_VIOLATION = 0.01
WHOLE_VIOLATION = 1.0
"""Violation of a trial that ran out of memory where its need is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The whole of a finished trial, so that another engine needs nothing else."""

    run: str
    run_id: str
    host: str
    number: int
    """The trial's, in its own run."""
    purpose: Purpose
    configuration: Document
    outcome: Annotated[Outcome, Field(discriminator="kind")]

    @property
    def origin(self) -> Origin:
        """Where it was run."""
        return Origin(host=self.host, run=self.run, run_id=self.run_id, number=self.number)


@cache
def _adapter() -> TypeAdapter[Entry]:
    return TypeAdapter(Entry)


def entry_of(trial: FrozenTrial) -> Entry | None:
    """What an engine wrote to a trial when it ended; None where none did."""
    written = trial.user_attrs.get(ENTRY)
    if not trial.state.is_finished() or not isinstance(written, Mapping):
        return None
    try:
        return _adapter().validate_python(written)
    except ValidationError:
        return None


def write(trial: Trial, finished: FinishedTrial, own: Origin, usable_bytes: int | None) -> None:
    """Writes an outcome to a trial, and what samplers must know of its memory.

    Args:
        trial: Still running.
        finished: What came of it.
        own: Of this engine's run; a trial that another engine ran keeps its own origin.
        usable_bytes: What may be filled; None where it is not known.

    Raises:
        ENDED_ERROR: The trial was ended by somebody else.
    """
    origin = finished.origin or own
    entry = Entry(
        run=origin.run,
        run_id=origin.run_id,
        host=origin.host,
        number=origin.number,
        purpose=finished.purpose,
        configuration=finished.configuration.to_json(),  # type: ignore[arg-type]
        outcome=finished.outcome,
    )
    trial.set_user_attr(ENTRY, _adapter().dump_python(entry, mode="json"))
    violation = _violation(finished.outcome, usable_bytes)
    if violation is not None:
        if has_set_constraint():
            trial.set_constraint("memory", violation)
        else:
            trial.set_user_attr(CONSTRAINT_ATTRIBUTE, violation)


def told_as(outcome: Outcome, worst_value: float | None) -> tuple[TrialState, float | None]:
    """How Optuna is told of an outcome.

    Args:
        outcome: How the trial ended.
        worst_value: For a sampler that ignores pruned trials, and learns of one that ran out of
            memory by a bad value; None for others, or where there is no value yet.
    """
    if isinstance(outcome, Measured):
        return TrialState.COMPLETE, outcome.samples_per_s
    if isinstance(outcome, OutOfMemory):
        state = TrialState.PRUNED if worst_value is None else TrialState.COMPLETE
        return state, worst_value
    return TrialState.FAIL, None


def arrivals(
    trials: Sequence[FrozenTrial], history: History, run_id: str, axes: Axes
) -> tuple[Arrival, ...]:
    """What other engines found out that the history does not know yet, one a candidate.

    Readings and certain ends of memory are believed of everybody: the study is one of like
    machines. Other failures are believed of a run that has measured something: on a machine that
    is broken itself, everything fails. What was stopped or killed says nothing.
    """
    entries = [
        (entry, configuration)
        for trial in trials
        if (entry := entry_of(trial)) is not None
        and entry.run_id != run_id
        and (configuration := axes.configuration(trial.params)) is not None
    ]
    sound = {entry.run_id for entry, _ in entries if isinstance(entry.outcome, Measured)}
    known = {t.origin for t in history.trials}
    found: dict[object, Arrival] = {}
    for entry, configuration in entries:
        is_new = entry.origin not in known and not history.is_tried(configuration)
        if is_new and _is_believed(entry.outcome, is_sound=entry.run_id in sound):
            found.setdefault(
                configuration,
                Arrival(configuration=configuration, outcome=entry.outcome, origin=entry.origin),
            )
    return tuple(found.values())


def _is_believed(outcome: Outcome, *, is_sound: bool) -> bool:
    match outcome:
        case Measured():
            return True
        case OutOfMemory() if outcome.is_certain:
            return True
        case Stopped() | Failed(is_killed=True):
            return False
        case _:
            return is_sound


def _violation(outcome: Outcome, usable_bytes: int | None) -> float | None:
    """Memory over what may be filled, less one; None where the outcome says nothing of it."""
    if isinstance(outcome, Measured):
        if usable_bytes is None:
            return 0.0
        return min(0.0, outcome.memory.total_bytes / usable_bytes - 1)
    if isinstance(outcome, OutOfMemory):
        limit_bytes = outcome.limit_bytes or usable_bytes
        if limit_bytes is None or outcome.needed_at_least_bytes is None:
            return WHOLE_VIOLATION
        return max(SMALLEST_VIOLATION, outcome.needed_at_least_bytes / limit_bytes - 1)
    return None
