"""Folds the records of a run into one RunView, and reads a run's journal that way."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from autotune import journal
from autotune.configuration import Configuration
from autotune.errors import JournalError
from autotune.events import (
    BestChanged,
    ConfirmationContinued,
    Confirmed,
    FilesExported,
    HoldChanged,
    LinkProbed,
    LocalSGDPredicted,
    MachineProbed,
    MemoryForeseen,
    NoiseScaleMeasured,
    NoteAdded,
    ParityChecked,
    ProbeStarted,
    RecommendationMade,
    Record,
    RegionClosed,
    RunEnded,
    RunStarted,
    SearchEnded,
    SpacePlanned,
    StudyOpened,
    TrialFinished,
    TrialProgressed,
    TrialReceived,
    TrialsAwaited,
    TrialStarted,
    WarningRaised,
    WorkloadLoaded,
)
from autotune.pauses import after
from autotune.run_directory import RunDirectory
from autotune.sense import is_possible, possible
from autotune.view import RunView, Stage, TrialView, running_of
from probes.link import link_adapter

_HOLDING: tuple[Stage, ...] = ("searching", "confirming")
"""The stages in which an engine that holds new trials back waits."""


def view_of(run: RunDirectory) -> RunView:
    """What the journal of a run tells.

    Raises:
        JournalError: It cannot be read, is missing though trials have run, or tells of something
            that cannot be.
    """
    try:
        return fold(journal.read_run(run))
    except OSError as error:
        raise JournalError(
            f"{run.journal} cannot be read: {error.strerror}.", "Look at its owner and its rights."
        ) from error
    except ValueError as error:
        raise JournalError(
            f"{run.journal} holds an event that makes no sense: {error}",
            "Delete that line to see the rest, or start a new run.",
        ) from error


def fold(records: Iterable[Record], view: RunView | None = None) -> RunView:
    """Applies records in order to a view, the empty one by default. Pure."""
    view = view or RunView()
    trials = _Trials(view.trials)
    now_s, told_s, next_seq = view.now_s, view.told_s, view.next_seq
    for record in records:
        view = _apply(view, trials, record)
        now_s = max(now_s, record.t_s)
        if not isinstance(record.event, TrialProgressed):
            # Progress bears the number of the record that comes after it.
            next_seq = max(next_seq, record.seq + 1)
            waits = view.held and view.stage in _HOLDING and trials.running is None
            pauses = after(view.pauses, record, told_s=told_s, waits=waits)
            if pauses is not view.pauses:
                view = replace(view, pauses=pauses)
            told_s = max(told_s, record.t_s)
    return replace(view, trials=trials.all, now_s=now_s, told_s=told_s, next_seq=next_seq)


class _Trials:
    """The trials while records are folded: changing one costs the same however many there are."""

    def __init__(self, trials: tuple[TrialView, ...]) -> None:
        self._before = trials
        self._by_number: dict[int, TrialView] | None = None

    def _changing(self) -> dict[int, TrialView]:
        if self._by_number is None:
            self._by_number = {trial.number: trial for trial in self._before}
        return self._by_number

    def put(self, trial: TrialView) -> None:
        """Adds a trial, or replaces it; it comes last."""
        trials = self._changing()
        trials.pop(trial.number, None)
        trials[trial.number] = trial

    def keep_finished(self) -> None:
        """Drops what has no outcome."""
        self._by_number = {t.number: t for t in self.all if t.outcome is not None}

    def get(self, number: int) -> TrialView | None:
        """The trial with that number."""
        return self._changing().get(number)

    @property
    def running(self) -> TrialView | None:
        """The last one without an outcome."""
        return running_of(self._before if self._by_number is None else self._by_number.values())

    @property
    def all(self) -> tuple[TrialView, ...]:
        """All of them; the same object as before, if nothing changed."""
        return self._before if self._by_number is None else tuple(self._by_number.values())


def _between(view: RunView, stage: Stage) -> RunView:
    """The view with no progress of a trial."""
    if view.progress is None and view.stage == stage:
        return view
    return replace(view, progress=None, stage=stage)


def _apply(view: RunView, trials: _Trials, record: Record) -> RunView:
    event = record.event
    match event:
        case RunStarted():
            # A trial that ran when an earlier engine died never got an outcome.
            trials.keep_finished()
            return replace(
                view,
                run=event.run,
                created_unix_s=view.created_unix_s or event.created_unix_s,
                started=event,
                started_s=record.t_s,
                stage="probing",
                probing=None,
                progress=None,
                held=False,
                # The engine that takes it up says anew why its search ended.
                search_ended=None,
                ended=None,
            )
        case ProbeStarted():
            return replace(view, probing=event)
        case MachineProbed():
            return replace(view, machine=event, probing=None, stage="loading")
        case LinkProbed():
            if view.machine is None:
                return view
            links = [link_adapter().dump_python(event.link, mode="json")]
            machine = {**view.machine.machine, "links": links}
            return replace(view, machine=replace(view.machine, machine=machine))
        case WorkloadLoaded():
            return replace(view, workload=event)
        case ParityChecked():
            return replace(view, parity=event)
        case SpacePlanned():
            return replace(view, space=event, stage="searching")
        case MemoryForeseen():
            return replace(view, foreseen=event)
        case StudyOpened():
            return replace(view, study=event)
        case TrialStarted():
            trial = TrialView(
                number=event.number,
                purpose=event.purpose,
                configuration=Configuration.from_json(event.configuration),
                why=event.why,
                started_s=record.t_s,
                predicted=event.predicted,
            )
            trials.put(trial)
            stage: Stage = "confirming" if event.purpose in ("confirm", "memory") else view.stage
            return _between(view, stage)
        case TrialProgressed():
            running = trials.running
            if running is None or running.number != event.number or not is_possible(event):
                return view
            return replace(view, progress=event)
        case TrialFinished():
            known = trials.get(event.number)
            finished_trial = TrialView(
                number=event.number,
                purpose=event.purpose,
                configuration=Configuration.from_json(event.configuration),
                why=known.why if known else "",
                started_s=known.started_s if known else max(0.0, record.t_s - event.wall_s),
                outcome=possible(event.outcome),
                wall_s=event.wall_s,
                overhead_s=event.overhead_s,
                predicted=event.predicted or (known.predicted if known else None),
            )
            trials.put(finished_trial)
            return _between(view, view.stage)
        case TrialReceived():
            received = TrialView(
                number=event.number,
                purpose=event.purpose,
                configuration=Configuration.from_json(event.configuration),
                why="",
                started_s=record.t_s,
                outcome=possible(event.outcome),
                origin=event.origin,
            )
            trials.put(received)
            return view
        case TrialsAwaited():
            return view
        case RegionClosed():
            # An engine that goes on with a run tells again what its predictions rule out.
            return view if event in view.closed else replace(view, closed=(*view.closed, event))
        case BestChanged():
            return replace(view, best=event)
        case LocalSGDPredicted():
            return replace(view, local_sgd=event)
        case NoiseScaleMeasured():
            return replace(view, noise_scale=event)
        case SearchEnded():
            return replace(view, search_ended=event, stage="confirming")
        case ConfirmationContinued():
            return view
        case Confirmed():
            return replace(view, confirmed=event) if is_possible(event) else view
        case RecommendationMade():
            return replace(view, recommendation=event.document, stage="exporting")
        case FilesExported():
            return replace(view, exported=event)
        case WarningRaised():
            # An engine that goes on with a run finds the same again, in other figures.
            text = _without_figures(event.cause)
            if any(_without_figures(w.cause) == text for w in view.warnings):
                latest = (event if _without_figures(w.cause) == text else w for w in view.warnings)
                return replace(view, warnings=tuple(latest))
            return replace(view, warnings=(*view.warnings, event))
        case HoldChanged():
            return replace(view, held=event.held)
        case NoteAdded():
            return replace(view, notes=(*view.notes, event))
        case RunEnded():
            return replace(view, ended=event, stage="done", progress=None)
        case _:
            assert_never(event)


def _without_figures(cause: str) -> str:
    """A warning's text; which trial it speaks of stays."""
    return re.sub(r"(?<!Trial )\b\d+(?:\.\d+)?\b", "#", cause)
