"""What a run looks like now: `fold` turns its records into one RunView.

The command line, the terminal UI and a second terminal all show the same RunView, whether they
watch the run live or read its journal a year later.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Reversible
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, assert_never

from pydantic import JsonValue

from autotune import journal
from autotune.configuration import Configuration
from autotune.errors import JournalError
from autotune.events import (
    BestChanged,
    ConfirmationContinued,
    Confirmed,
    Document,
    FilesExported,
    HoldChanged,
    LinkProbed,
    LocalSGDPredicted,
    MachineProbed,
    MemoryForeseen,
    NoiseScaleMeasured,
    NoteAdded,
    Origin,
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
from autotune.outcome import Measured, Outcome, Purpose
from autotune.pauses import Pause, after, worked_s
from autotune.run_directory import RunDirectory
from autotune.sense import is_possible, possible
from probes.link import link_adapter

Stage: TypeAlias = Literal["new", "probing", "loading", "searching", "confirming", "done"]
"""Where a run stands."""
_HOLDING: tuple[Stage, ...] = ("searching", "confirming")
"""The stages in which an engine that holds new trials back waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """One trial, running or finished."""

    number: int
    purpose: Purpose
    configuration: Configuration
    why: str
    started_s: float
    outcome: Outcome | None = None
    """None while it runs."""
    wall_s: float | None = None
    overhead_s: float | None = None
    predicted: Document | None = None
    origin: Origin | None = None
    """The engine that ran it, where that is another one of a shared study."""
    is_lost: bool = False
    """Whether it was running when its engine ended, so that it never got an outcome."""

    @property
    def predicted_bytes(self) -> int | None:
        """The memory that was predicted of it; None where nothing was."""
        return bytes_of(self.predicted)

    @property
    def state(self) -> str:
        """The outcome's kind; without one running, or lost with its engine."""
        if self.outcome is not None:
            return self.outcome.kind
        return "lost" if self.is_lost else "running"

    @property
    def measured(self) -> Measured | None:
        """The readings, if the trial was measured."""
        return self.outcome if isinstance(self.outcome, Measured) else None


def bytes_of(prediction: Mapping[str, JsonValue] | None) -> int | None:
    """The memory that a prediction names: `total_bytes`, at the top or under `memory`."""
    if prediction is None:
        return None
    memory = prediction.get("memory")
    for place in (prediction, memory if isinstance(memory, dict) else {}):
        value = place.get("total_bytes")
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isfinite(value) and value >= 0:
            return int(value)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """Everything that is known of a run at one moment."""

    run: str = ""
    stage: Stage = "new"
    next_seq: int = 0
    """Number of the first record that is not in this view."""
    now_s: float = 0.0
    """Time of the last record, in seconds since the run's start."""
    created_unix_s: float = 0.0
    """When the run was first started, by the wall clock; times of records count from here."""
    started: RunStarted | None = None
    started_s: float = 0.0
    """When the present or last engine took the run up; the budget counts from here."""
    told_s: float = 0.0
    """Time of the last record of the journal, which knows no progress."""
    pauses: tuple[Pause, ...] = ()
    """When nobody worked on the run, oldest first."""
    probing: ProbeStarted | None = None
    """The probe that runs; None before the first and after the last one."""
    machine: MachineProbed | None = None
    workload: WorkloadLoaded | None = None
    parity: ParityChecked | None = None
    space: SpacePlanned | None = None
    foreseen: MemoryForeseen | None = None
    """What was predicted of the candidates' memory before the first trial."""
    study: StudyOpened | None = None
    """The study that is shared with other runs, if it is."""
    trials: tuple[TrialView, ...] = ()
    progress: TrialProgressed | None = None
    """Of the running trial; None between trials."""
    closed: tuple[RegionClosed, ...] = ()
    best: BestChanged | None = None
    local_sgd: LocalSGDPredicted | None = None
    noise_scale: NoiseScaleMeasured | None = None
    search_ended: SearchEnded | None = None
    confirmed: Confirmed | None = None
    recommendation: Document | None = None
    exported: FilesExported | None = None
    warnings: tuple[WarningRaised, ...] = ()
    notes: tuple[NoteAdded, ...] = ()
    held: bool = False
    ended: RunEnded | None = None

    def trial(self, number: int) -> TrialView | None:
        """The trial with that number."""
        # From the end: who folds a long journal asks for the newest one.
        return next((t for t in reversed(self.trials) if t.number == number), None)

    @property
    def budget_s(self) -> float | None:
        """Seconds that the present engine may take."""
        return _number(self.started, "seconds")

    def clock_s(self, t_s: float) -> float:
        """What the run's one clock shows at a time: seconds worked, over all engines.

        It stands still between two engines, and while new trials are held back: the budget, which
        is counted in the same seconds, waits as well.

        Args:
            t_s: Seconds since the run's start, as records have them.
        """
        return worked_s(t_s, self.pauses)

    @property
    def budget_end_s(self) -> float | None:
        """What the clock shows when the present engine has spent its budget; None without one."""
        budget_s = self.budget_s
        return None if budget_s is None else self.clock_s(self.started_s) + budget_s

    @property
    def budget_trials(self) -> int | None:
        """Search trials that the run may take."""
        trials = _number(self.started, "trials")
        return None if trials is None else int(trials)

    @property
    def num_search_trials(self) -> int:
        """Trials that count against the budget, the running one included."""
        return sum(
            trial.purpose in ("baseline", "search") and trial.origin is None and not trial.is_lost
            for trial in self.trials
        )

    @property
    def running(self) -> TrialView | None:
        """The trial that runs now."""
        return _running(self.trials)

    @property
    def baseline(self) -> TrialView | None:
        """The trial of the user's present configuration."""
        return next((t for t in self.trials if t.purpose == "baseline"), None)


def _number(started: RunStarted | None, name: str) -> float | None:
    budget = started.request.get("budget") if started else None
    value = budget.get(name) if isinstance(budget, dict) else None
    return value if isinstance(value, int | float) and math.isfinite(value) else None


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
        return _running(self._before if self._by_number is None else self._by_number.values())

    @property
    def all(self) -> tuple[TrialView, ...]:
        """All of them; the same object as before, if nothing changed."""
        return self._before if self._by_number is None else tuple(self._by_number.values())


def _running(trials: Reversible[TrialView]) -> TrialView | None:
    unfinished = (t for t in reversed(trials) if t.outcome is None and not t.is_lost)
    return next(unfinished, None)


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


def without_engine(view: RunView) -> RunView:
    """The run as it is while no engine works on it: what was running when one died is lost.

    The journal cannot tell that. Records are folded into the view before, not into this one.
    """
    if view.running is None and view.progress is None:
        return view
    trials = (replace(t, is_lost=True) if t.outcome is None else t for t in view.trials)
    return replace(view, trials=tuple(trials), progress=None)


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
            return replace(view, recommendation=event.document)
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
