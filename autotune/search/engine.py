"""The search: ask, run, write down, tell; until nothing more is worth a trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from autotune.configuration import Configuration
from autotune.cost.memory.foresight import Foresight, Need
from autotune.errors import AutotuneError
from autotune.events import (
    BestChanged,
    Document,
    SearchEnded,
    TrialFinished,
    TrialProgressed,
    TrialReceived,
    TrialsAwaited,
    TrialStarted,
)
from autotune.outcome import Measured, Outcome, Purpose, Stopped, TimedOut
from autotune.search.evidence.closing import with_trial
from autotune.search.evidence.finished import Arrival, FinishedTrial
from autotune.search.evidence.foreseen import with_foresight
from autotune.search.evidence.history import History
from autotune.search.evidence.statistics import samples_per_s_interval
from autotune.search.order import Next, Over, Wait
from autotune.search.session import Session
from autotune.search.trials import TrialPlan, TrialResult, run_trial
from autotune.trial.pool import WorkerPool
from autotune.trial.protocol import Progress
from autotune.units import counted, format_bytes

TIME_LIMIT_FACTOR = 10.0
"""A trial that takes this many times the slowest measured one hangs, or might as well."""
LEAST_TIME_LIMIT_S = 60.0
LEAST_LEFT_S = 5.0
"""What a trial gets that was started just before the time ran out."""
WAIT_S = 0.5
"""Between two looks at a shared study, while other engines try what is left."""


class Strategy(Protocol):
    """What decides which candidate comes next, and is told how it went."""

    def arrivals(self, history: History) -> Sequence[Arrival]:
        """What other engines of a shared study found out that the history does not know yet."""
        ...

    def ask(self, history: History) -> Next | Over | Wait:
        """The next candidate, why the search is over, or whom to wait for."""
        ...

    def tell(self, trial: FinishedTrial, history: History) -> None:
        """Takes note of a finished trial, which the journal holds already."""
        ...

    def close(self) -> None:
        """Gives back what it holds open."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to stop asking for candidates."""

    num_trials: int
    reserve_s: Callable[[History], float]
    """Seconds that confirmation will need."""


class Engine:
    """Runs trials one after another and keeps the history.

    Args:
        session: Where events go and requests come from.
        pool: Where workers come from.
        history: What is known already; empty at the start of a run.
        plan: How long a trial looks at a configuration.
        next_number: Number of the next trial.
    """

    def __init__(
        self,
        session: Session,
        pool: WorkerPool,
        history: History,
        plan: TrialPlan,
        next_number: int = 0,
    ) -> None:
        self.session = session
        self.pool = pool
        self.history = history
        self.plan = plan
        self._next_number = next_number
        self._slowest_s = 0.0
        self._best: int | None = None
        self._awaited = Wait()
        self._predicted: dict[int, Document] = {}

    def foresee(self, foresight: Foresight) -> None:
        """Takes what is predicted of memory into the history: what cannot fit is ruled out."""
        known = len(self.history.regions)
        self.history = with_foresight(self.history, foresight)
        for region in self.history.regions[known:]:
            self.session.emit(region.event)

    def take_number(self) -> int:
        """A number for a new trial."""
        number = self._next_number
        self._next_number += 1
        return number

    def search(self, strategy: Strategy, limits: Limits) -> str:
        """Tries candidates until the strategy, the budget or a request ends it.

        Returns:
            Why the search ended.

        Raises:
            AutotuneError: A worker could not load the workload again.
        """
        try:
            over = self._search(strategy, limits)
        finally:
            strategy.close()
        num_untried = len(self.history.open_candidates)
        self.session.emit(
            SearchEnded(
                reason=over.reason,
                num_untried=num_untried,
                is_budget_spent=over.is_budget_spent and num_untried > 0,
            )
        )
        return over.reason

    def _search(self, strategy: Strategy, limits: Limits) -> Over:
        while True:
            if self.session.should_end():
                return Over(reason=f"stopped by {self.session.stopped_by}")
            for arrival in strategy.arrivals(self.history):
                self.receive(arrival)
            if self.session.remaining_s <= 0:
                return Over(reason="the time is spent", is_budget_spent=True)
            if self.history.num_own_trials >= limits.num_trials:
                trials = counted(limits.num_trials, "trial")
                return Over(reason=f"the budget of {trials} is spent", is_budget_spent=True)
            if (
                self.history.measured
                and self.session.remaining_s < limits.reserve_s(self.history) + self._typical_s()
            ):
                reason = "the rest of the time is needed for confirmation"
                return Over(reason=reason, is_budget_spent=True)
            step = strategy.ask(self.history)
            if isinstance(step, Over):
                return step
            if isinstance(step, Wait):
                self._wait(step)
                continue
            is_baseline = step.configuration == self.history.space.baseline
            trial = self.run(step.configuration, "baseline" if is_baseline else "search", step.why)
            strategy.tell(trial, self.history)

    def _wait(self, step: Wait) -> None:
        if step.held and step != self._awaited:
            self._awaited = step
            self.session.emit(
                TrialsAwaited(
                    configurations=tuple(c.to_json() for c, _ in step.held),  # type: ignore[misc]
                    hosts=tuple(sorted({host for _, host in step.held})),
                )
            )
        time.sleep(WAIT_S)

    def receive(self, arrival: Arrival) -> None:
        """Takes the outcome of another engine into the history, under a number of this run."""
        is_baseline = arrival.configuration == self.history.space.baseline
        trial = FinishedTrial(
            number=self.take_number(),
            purpose="baseline" if is_baseline else "search",
            configuration=arrival.configuration,
            outcome=arrival.outcome,
            origin=arrival.origin,
        )
        self.session.emit(
            TrialReceived(
                number=trial.number,
                purpose=trial.purpose,
                configuration=trial.configuration.to_json(),  # type: ignore[arg-type]
                outcome=trial.outcome,
                origin=arrival.origin,
            )
        )
        self._learn(trial)

    def _typical_s(self) -> float:
        return self._slowest_s / 2

    def run(self, configuration: Configuration, purpose: Purpose, why: str) -> FinishedTrial:
        """Runs one trial of the search and takes it into the history.

        Raises:
            AutotuneError: A machine that ranks ran on is gone, or a worker could not load the
                workload again.
        """
        self.pool.check_nodes()
        number = self.take_number()
        self.started(number, configuration, purpose, why)
        limit_s = max(LEAST_TIME_LIMIT_S, TIME_LIMIT_FACTOR * self._slowest_s)
        if not self._slowest_s:
            limit_s = self.plan.time_limit_s
        left_s = max(LEAST_LEFT_S, self.session.remaining_s)
        start_s = time.perf_counter()
        try:
            result = run_trial(
                self.pool,
                configuration,
                replace(self.plan, time_limit_s=min(limit_s, left_s)),
                log=self.session.run.trial(number) / "output.log",
                interval=samples_per_s_interval,
                on_progress=self.progress(number),
                should_stop=self.session.why_stop_now,
            )
        except AutotuneError as error:
            # It says nothing about the configuration, and what began is not left without an end.
            wall_s = time.perf_counter() - start_s
            result = TrialResult(
                outcome=Stopped(cause=error.cause), wall_s=wall_s, overhead_s=wall_s
            )
            self.finished(number, configuration, purpose, result)
            raise
        if isinstance(result.outcome, TimedOut) and left_s < limit_s:
            # It says nothing about the configuration, which a resumed run may try again.
            result = replace(result, outcome=Stopped(cause="The time of the run was spent."))
        if isinstance(result.outcome, Measured):
            self._slowest_s = max(self._slowest_s, result.wall_s)
        return self.finished(number, configuration, purpose, result)

    def started(
        self, number: int, configuration: Configuration, purpose: Purpose, why: str
    ) -> None:
        """Says that a trial begins."""
        self.session.in_trial = True
        self.session.trial_stop_requested = False
        need = self.history.need(configuration)
        if need is not None:
            self._predicted[number] = {**need.to_json()}
        self.session.emit(
            TrialStarted(
                number=number,
                purpose=purpose,
                configuration=configuration.to_json(),  # type: ignore[arg-type]
                why=why,
                predicted=self._predicted.get(number),
            )
        )

    def progress(self, number: int) -> Callable[[Progress], None]:
        """A listener that passes a worker's progress on."""

        def report(progress: Progress) -> None:
            self.session.emit(
                TrialProgressed(
                    number=number,
                    stage=progress.stage,
                    step=progress.step,
                    num_steps=progress.num_steps,
                    samples_per_s=progress.samples_per_s,
                    memory_bytes=progress.memory_bytes,
                )
            )

        return report

    def finished(
        self, number: int, configuration: Configuration, purpose: Purpose, result: TrialResult
    ) -> FinishedTrial:
        """Writes a trial's outcome down, and what follows from it."""
        self.session.in_trial = False
        self.session.trial_stop_requested = False
        self.session.emit(
            TrialFinished(
                number=number,
                purpose=purpose,
                configuration=configuration.to_json(),  # type: ignore[arg-type]
                outcome=result.outcome,
                wall_s=round(result.wall_s, 3),
                overhead_s=round(result.overhead_s, 3),
                predicted=self._predicted.get(number),
            )
        )
        trial = FinishedTrial(
            number=number,
            purpose=purpose,
            configuration=configuration,
            outcome=result.outcome,
        )
        self._learn(trial)
        return trial

    def _learn(self, trial: FinishedTrial) -> None:
        before = self.history
        self.history = with_trial(before, trial)
        if before.foresight is not None and self.history.foresight is None:
            self._tell_refuted(trial, before.need(trial.configuration))
        for region in self.history.regions:
            if region not in before.regions:
                self.session.emit(region.event)
        self._note_best()

    def _tell_refuted(self, trial: FinishedTrial, need: Need | None) -> None:
        assert need is not None
        assert isinstance(trial.outcome, Measured)
        self.session.warn(
            f"Trial {trial.number} needed {format_bytes(trial.outcome.memory.total_bytes)} where "
            f"{format_bytes(need.total_bytes)} were predicted: predictions of memory do not hold "
            "for this job.",
            "From here on trials alone decide what fits; what was ruled out by prediction may be "
            "tried.",
        )

    def _note_best(self) -> None:
        standing = self.history.standing
        leader = standing.best()
        if leader is None or leader.number == self._best:
            return
        self._best = leader.number
        baseline = self.history.baseline
        speedup = None
        if baseline is not None:
            speedup = standing.ratio(leader, baseline).value
        self.session.emit(
            BestChanged(
                number=leader.number,
                samples_per_s=leader.measured.samples_per_s,
                speedup=speedup,
            )
        )


def outcome_counts(history: History) -> dict[str, int]:
    """How many search trials ended in which way."""
    counts: dict[str, int] = {}
    for trial in history.trials:
        if trial.is_search:
            outcome: Outcome = trial.outcome
            counts[outcome.kind] = counts.get(outcome.kind, 0) + 1
    return counts
