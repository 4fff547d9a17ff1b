"""How far from the best configuration of the whole grid is what the search recommends?

The whole grid of a job is measured. The search is replayed on it, its best are confirmed as in any
run, and what is recommended is measured again, in turn with the fastest three of the grid, each in
a fresh process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil
from pydantic import JsonValue

from autotune.configuration import Configuration
from autotune.errors import AutotuneError
from autotune.outcome import Outcome
from autotune.search.confirm import (
    HALF_WIDTH,
    MIN_ROUNDS,
    TOGETHER_FRACTION,
    are_forked,
    confirm,
    steps_per_block,
)
from autotune.search.contestant import Contestant
from autotune.search.engine import Engine
from autotune.search.evidence.finished import MeasuredTrial
from autotune.search.evidence.history import History
from autotune.search.evidence.statistics import Ratio, ratio_of_times
from autotune.search.order import next_candidate
from autotune.search.preparation import worker_pool
from tests.benchmarks.grid import Grid, measure_grid, session_of
from tests.benchmarks.harness import Context, Reading, Report, Row, judge_at_most, say
from tests.benchmarks.jobs import CAUSAL, LONG_REVIEWS, REVIEWS
from tests.testing.landscapes import Replay, replay
from tests.testing.recordings import fastest, path_of, slowdown

JOBS = (REVIEWS, LONG_REVIEWS, CAUSAL)
NUM_RIVALS = 3
CONTEST_S = 200.0
"""Rounds that have not settled it by then leave it unsettled."""
SLOWER_PERCENT = 3.0
UPPER_PERCENT = 5.0
LEAST_ROUNDS_LOST = 12
"""Fewer beat nobody: an interval that is looked at after every round excludes much too soon."""


def run(context: Context) -> Report:
    """All jobs, one after another."""
    reports = [_study(context, measure_grid(context, job)) for job in JOBS]
    return Report(
        rows=tuple(row for report in reports for row in report.rows),
        notes=tuple(note for report in reports for note in report.notes),
        details={name: value for report in reports for name, value in report.details.items()},
    )


def _study(context: Context, grid: Grid) -> Report:
    landscape, job = grid.landscape, grid.job
    if context.record:
        path = path_of(job.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        landscape.save(path)
    found = replay(landscape, next_candidate)
    chosen = _confirmed(context, grid, found)
    rivals = [t for t in fastest(landscape, NUM_RIVALS) if t.configuration != chosen.configuration]
    say(f"measures {chosen.configuration} and the grid's fastest again, in turn")
    contest = _Contest(context, grid, chosen, rivals).run()
    space = landscape.space
    return Report(
        rows=(_trials_row(grid, found), contest.row),
        notes=(
            f"{job.title}: the grid has {len(landscape.entries)} configurations, "
            f"{len(space.micro_batch_sizes)} micro-batch sizes × {len(space.forms)} checkpointing "
            f"forms that differ on this model; {grid.num_out_of_memory} ran out of memory. "
            f"{grid.limit_text} Measuring it took {grid.wall_s / 60:.1f} min.",
            f"{job.title}: the search ended after {found.history.num_search_trials} trials: "
            f"{found.reason}. Confirmed was {chosen.configuration}, by the grid's own readings "
            f"{100 * slowdown(landscape, chosen):.1f} % slower than the fastest.",
            *contest.notes,
        ),
        details={
            job.name: {
                "found": str(found.chosen.configuration),
                "chosen": str(chosen.configuration),
                "num_trials": found.history.num_search_trials,
                "num_configurations": len(landscape.entries),
                "num_out_of_memory": grid.num_out_of_memory,
                "limit_bytes": grid.limit_bytes,
                "samples_per_s": {
                    str(e.configuration): landscape.rate(e.configuration) for e in landscape.entries
                },
                "s_per_sample": contest.samples,
            }
        },
    )


def _confirmed(context: Context, grid: Grid, found: Replay) -> MeasuredTrial:
    """What a run would recommend after that search.

    Raises:
        AutotuneError: Nothing could be confirmed.
    """
    say(f"confirms what the search found, {found.chosen.configuration} first")
    with (
        session_of(context, f"confirm-{grid.job.name}") as session,
        worker_pool(session, grid.request, grid.machine, grid.environment) as pool,
    ):
        engine = Engine(session, pool, found.history, grid.plan, len(found.history.trials))
        verdict = confirm(engine, found.history.space.baseline)
    if verdict is None:
        raise AutotuneError(f"What was found for {grid.job.title} could not be confirmed.")
    return next(t for t in found.history.measured if t.configuration == verdict.chosen)


def _trials_row(grid: Grid, found: Replay) -> Row:
    num_trials, num_all = found.history.num_search_trials, len(grid.landscape.entries)
    return Row(
        what=f"trials of the search, {grid.job.title}",
        reading=Reading.of_samples([num_trials], "trials"),
        target=f"at most a quarter of {num_all}",
        verdict="passed" if num_trials <= num_all / 4 else "failed",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contested:
    row: Row
    notes: tuple[str, ...]
    samples: JsonValue


class _Contest:
    """The recommendation against the fastest of the grid, in fresh processes, by rounds."""

    def __init__(
        self, context: Context, grid: Grid, chosen: MeasuredTrial, rivals: list[MeasuredTrial]
    ) -> None:
        self._context = context
        self._grid = grid
        self._chosen = chosen
        self._rivals = rivals

    def run(self) -> _Contested:
        grid = self._grid
        with (
            session_of(self._context, f"contest-{grid.job.name}") as session,
            worker_pool(session, grid.request, grid.machine, grid.environment) as pool,
        ):
            history = History(space=grid.landscape.space)
            engine = Engine(session, pool, history, grid.plan)
            entered = [self._chosen, *self._rivals]
            held_bytes = sum(t.total_bytes for t in entered)
            is_forked = are_forked(pool, entered)
            step_s = max(t.measured.speed.step_s for t in entered)
            num_steps = steps_per_block(step_s, is_forked=is_forked)
            stays = held_bytes <= psutil.virtual_memory().available * TOGETHER_FRACTION
            contestants = [
                Contestant(
                    engine=engine,
                    number=n,
                    trial=t,
                    stays=stays,
                    is_forked=is_forked,
                    is_baseline=False,
                )
                for n, t in enumerate(entered)
            ]
            try:
                return self._rounds(contestants, num_steps)
            finally:
                for contestant in contestants:
                    contestant.close()

    def _rounds(self, contestants: list[Contestant], num_steps: int) -> _Contested:
        chosen, *rivals = contestants
        for contestant in contestants:
            contestant.launch()
        notes = []
        for contestant in contestants:
            fault = contestant.enter()
            if fault is None:
                continue
            self._must_not_be(chosen, contestant, fault)
            notes.append(
                f"{self._grid.job.title}: {contestant.configuration} did not hold in a fresh "
                f"process: {_cause(fault)}"
            )
            contestant.close()
            rivals.remove(contestant)
        end_s = time.monotonic() + (1.0 if self._context.quick else CONTEST_S)
        num_rounds = 0
        while num_rounds < MIN_ROUNDS or (
            time.monotonic() < end_s and not _are_settled(chosen, rivals)
        ):
            # The time is for those that may be faster.
            in_play = [chosen, *(r for r in rivals if not _is_beaten(chosen, r))]
            first = num_rounds % len(in_play)
            for contestant in in_play[first:] + in_play[:first]:
                fault = contestant.block(num_steps)
                if fault is not None:
                    raise AutotuneError(f"{contestant.configuration}: {_cause(fault)}")
            num_rounds += 1
        ratios = {rival.configuration: _time_ratio(chosen, rival) for rival in rivals}
        notes.append(
            f"{self._grid.job.title}: in {num_rounds} rounds of {num_steps} step(s), "
            f"{chosen.configuration} took "
            f"{', '.join(_against(ratio, rival) for rival, ratio in ratios.items())}."
        )
        return _Contested(
            row=self._row(ratios),
            notes=tuple(notes),
            samples={str(c.configuration): list(c.s_per_sample) for c in (chosen, *rivals)},
        )

    def _must_not_be(self, chosen: Contestant, contestant: Contestant, fault: Outcome) -> None:
        if contestant is chosen:
            raise AutotuneError(
                f"{chosen.configuration}, which was recommended for {self._grid.job.title}, did "
                f"not hold in a fresh process: {_cause(fault)}"
            )

    def _row(self, ratios: dict[Configuration, Ratio]) -> Row:
        """Against the one that it is slowest against."""
        what = f"time over the fastest of the grid's top {NUM_RIVALS}, {self._grid.job.title}"
        worst = max(ratios.values(), key=lambda ratio: ratio.value, default=None)
        if worst is None:
            return Row(what=what, note="the top of the grid did not hold when measured again")
        reading = Reading(
            value=100 * (worst.value - 1),
            low=100 * (worst.low - 1),
            high=100 * (worst.high - 1),
            num=worst.num_pairs,
            unit="%",
            spread="95 %",
        )
        return Row(
            what=what,
            reading=reading,
            target=f"at most {SLOWER_PERCENT:g} %, upper end at most {UPPER_PERCENT:g} %",
            verdict=judge_at_most(reading, value=SLOWER_PERCENT, high=UPPER_PERCENT),
        )


def _time_ratio(chosen: Contestant, rival: Contestant) -> Ratio:
    """Time of the chosen one over the rival's, in the rounds that both were in: the first ones."""
    times_s = rival.s_per_sample
    return ratio_of_times(times_s, chosen.s_per_sample[: len(times_s)])


def _are_settled(chosen: Contestant, rivals: list[Contestant]) -> bool:
    return all(
        _is_beaten(chosen, rival) or _time_ratio(chosen, rival).half_width <= HALF_WIDTH
        for rival in rivals
    )


def _is_beaten(chosen: Contestant, rival: Contestant) -> bool:
    """Whether the rival is slower beyond doubt."""
    rounds = len(rival.s_per_sample)
    return rounds >= LEAST_ROUNDS_LOST and _time_ratio(chosen, rival).high < 1


def _against(ratio: Ratio, rival: Configuration) -> str:
    return f"{100 * (ratio.value - 1):+.1f} % in time against {rival}"


def _cause(fault: Outcome) -> str:
    return str(getattr(fault, "cause", fault.kind))
