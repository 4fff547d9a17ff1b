"""What a run looks like at one moment.

The command line, the terminal UI and a second terminal all show the same RunView, whether they
watch the run live or read its journal a year later; `autotune.folding` makes it of the records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Reversible
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from pydantic import JsonValue

from autotune.configuration import Configuration
from autotune.events import (
    BestChanged,
    Confirmed,
    Document,
    FilesExported,
    LocalSGDPredicted,
    MachineProbed,
    MemoryForeseen,
    NoiseScaleMeasured,
    NoteAdded,
    Origin,
    ParityChecked,
    ProbeStarted,
    RegionClosed,
    RunEnded,
    RunStarted,
    SearchEnded,
    SpacePlanned,
    StudyOpened,
    TrialProgressed,
    WarningRaised,
    WorkloadLoaded,
)
from autotune.outcome import Measured, Outcome, Purpose
from autotune.pauses import Pause, worked_s
from autotune.units import counted

Stage: TypeAlias = Literal[
    "new", "probing", "loading", "searching", "confirming", "exporting", "done"
]
"""Where a run stands."""

SEARCHED: tuple[Purpose, ...] = ("baseline", "search")
"""The purposes of trials that a table shows; the others repeat what these measured."""


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
    def is_repeat(self) -> bool:
        """Whether it measures again what a trial of the search did, whatever becomes of it."""
        return self.purpose not in SEARCHED

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


def how_many(trials: Iterable[TrialView]) -> str:
    """So many trials in words, with what does not count against the budget told apart."""
    own = of_others = lost = repeats = 0
    for trial in trials:
        if trial.is_repeat:
            repeats += 1
        elif trial.origin is not None:
            of_others += 1
        elif trial.is_lost:
            lost += 1
        else:
            own += 1
    return trials_and_repeats(own, repeats, num_of_others=of_others, num_lost=lost)


def trials_and_repeats(
    num_trials: int, num_repeats: int, *, num_of_others: int = 0, num_lost: int = 0
) -> str:
    """`5 trials`, `1 trial and 3 repeats`, `5 trials, 2 of other runs and 1 lost trial`."""
    others = [f"{num_of_others} of other runs"] if num_of_others else []
    others += [counted(num_lost, "lost trial")] if num_lost else []
    others += [counted(num_repeats, "repeat")] if num_repeats else []
    parts = [counted(num_trials, "trial"), *others] if num_trials or not others else others
    return " and ".join([*([", ".join(parts[:-1])] if parts[1:] else []), parts[-1]])


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
            not trial.is_repeat and trial.origin is None and not trial.is_lost
            for trial in self.trials
        )

    @property
    def running(self) -> TrialView | None:
        """The trial that runs now."""
        return running_of(self.trials)

    @property
    def baseline(self) -> TrialView | None:
        """The trial of the user's present configuration."""
        return next((t for t in self.trials if t.purpose == "baseline"), None)


def _number(started: RunStarted | None, name: str) -> float | None:
    budget = started.request.get("budget") if started else None
    value = budget.get(name) if isinstance(budget, dict) else None
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def running_of(trials: Reversible[TrialView]) -> TrialView | None:
    """The last trial that has no outcome yet."""
    unfinished = (t for t in reversed(trials) if t.outcome is None and not t.is_lost)
    return next(unfinished, None)


def without_engine(view: RunView) -> RunView:
    """The run as it is while no engine works on it: what was running when one died is lost.

    The journal cannot tell that. Records are folded into the view before, not into this one.
    """
    if view.running is None and view.progress is None:
        return view
    trials = (replace(t, is_lost=True) if t.outcome is None else t for t in view.trials)
    return replace(view, trials=tuple(trials), progress=None)
