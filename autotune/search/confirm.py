"""Measures best, contenders and baseline again, interleaved, in fresh processes.

No trial has run before in the processes that are used. In each round every contestant trains on
the same next global batches, in an order that turns from round to round; what the machine does
meanwhile hits all of them alike.

How code and memory happen to lie makes two processes of one configuration differ by some per cent
for as long as they live, which no number of rounds would show. Where forks are to be had, and are
quickly warm, each round of each contestant is therefore timed in a new fork of one fresh process
that all of them share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from autotune.configuration import Configuration
from autotune.cost.decision import simplicity
from autotune.errors import AutotuneError
from autotune.events import ConfirmationContinued, Confirmed
from autotune.outcome import Failed, Outcome, Stopped, TimedOut
from autotune.search.contestant import Contestant
from autotune.search.engine import Engine
from autotune.search.evidence.finished import MeasuredTrial
from autotune.search.evidence.statistics import Ratio, ratio_of_times, samples_per_s_interval
from autotune.search.trials import TrialResult
from autotune.trial.pool import WorkerPool
from autotune.trial.protocol import WARMUP_STEPS
from probes.memory import read_memory

MIN_ROUNDS = 4
MAX_ROUNDS = 12
LEAST_ROUNDS = 2
"""Time ends it no sooner: one pair has no interval."""
NUM_LEADERS = 3
"""The best, and the next that may be as fast."""
HALF_WIDTH = 0.02
"""The interval of the ratio is settled once it is at most this far from its middle."""
SHOW_S = 0.6
"""How long a display may take to show a message, in which nothing is measured."""
BLOCK_S = 1.0
"""Aimed-at time of one contestant in one round."""
FORK_WARM_UP_S = 2.0
"""How long forks may warm up before each round."""
TOGETHER_FRACTION = 0.7
"""Part of the free memory that waiting contestants may hold at the same time."""
STOPPED = "The run was stopped meanwhile."


class ContestantLostError(Exception):
    """A contestant could not be measured; its outcome is in the journal and the history.

    Args:
        configuration: What it was.
        is_unwanted: Whether somebody stopped it, so that the history does not speak against it.
    """

    def __init__(self, configuration: Configuration, *, is_unwanted: bool) -> None:
        super().__init__(str(configuration))
        self.configuration = configuration
        self.is_unwanted = is_unwanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What confirmation found."""

    event: Confirmed
    chosen: Configuration


def confirmation_s(
    *, num_contestants: int, cold_start_s: float, step_s: float, rounds: int = MIN_ROUNDS
) -> float:
    """Seconds that confirming will take at least, from what steps and cold starts took."""
    warm_up_s = step_s * WARMUP_STEPS
    may_fork = warm_up_s <= FORK_WARM_UP_S
    round_s = max(BLOCK_S, warm_up_s) + warm_up_s if may_fork else max(BLOCK_S, step_s)
    return num_contestants * (cold_start_s + step_s * 2 + warm_up_s + rounds * round_s)


def are_forked(pool: WorkerPool, trials: Iterable[MeasuredTrial]) -> bool:
    """Whether contestants are measured in forks of one process, a new one for each round.

    Ranks would have to meet and to exchange the parameters anew each time.
    """
    return pool.options.isolation == "fork" and all(
        t.configuration.world_size == 1 and t.measured.speed.step_s * WARMUP_STEPS <= FORK_WARM_UP_S
        for t in trials
    )


def steps_per_block(step_s: float, *, is_forked: bool) -> int:
    """Steps of each contestant that are timed in one round.

    In a new fork at least as many as warm it up: rounds of fewer would cost nearly as much time,
    and tell less.
    """
    return max(WARMUP_STEPS if is_forked else 1, round(BLOCK_S / step_s))


def confirm(engine: Engine, baseline: Configuration) -> Verdict | None:
    """Settles which configuration is recommended.

    A contestant that fails here, or is stopped by somebody, is struck out and the next best takes
    its place.

    Returns:
        The verdict; None where the budget or a request ended it first, or nothing is left.

    Raises:
        AutotuneError: A worker could not load the workload again, or a machine is gone.
    """
    unwanted: set[Configuration] = set()
    while True:
        engine.pool.check_nodes()
        leaders = engine.history.leaders_without(unwanted)[:NUM_LEADERS]
        if not leaders or engine.session.should_end() or engine.session.remaining_s <= 0:
            return None
        # The worker of the search holds memory too, which would count as that of who comes next.
        engine.pool.close()
        entered = list(leaders)
        own = engine.history.baseline
        if own is not None and own not in entered and own.configuration not in unwanted:
            entered.append(own)
        try:
            return _Contest(engine, entered, baseline).run()
        except ContestantLostError as lost:
            if lost.is_unwanted:
                unwanted.add(lost.configuration)


def is_tie(ratio: Ratio) -> bool:
    """Whether the rounds leave open which side is faster."""
    return ratio.low <= 1.0 <= ratio.high


class _Contest:
    def __init__(
        self, engine: Engine, entered: Sequence[MeasuredTrial], baseline: Configuration
    ) -> None:
        self._engine = engine
        self._session = engine.session
        self._baseline = baseline
        kept = self._affordable(entered)
        step_s = max(t.measured.speed.step_s for t in kept)
        stays, is_forked = self._fit_together(kept), are_forked(engine.pool, kept)
        self._steps_per_block = steps_per_block(step_s, is_forked=is_forked)
        self._contestants = [
            Contestant(
                engine=engine,
                number=engine.take_number(),
                trial=trial,
                stays=stays,
                is_forked=is_forked,
                is_baseline=trial.configuration == baseline,
            )
            for trial in kept
        ]

    def _affordable(self, entered: Sequence[MeasuredTrial]) -> list[MeasuredTrial]:
        """Leaves contenders out where time does not suffice; best and baseline stay in."""
        kept = list(entered)
        while self._wanted_s(kept) > self._session.remaining_s:
            contenders = [t for t in kept[1:] if t.configuration != self._baseline]
            if not contenders:
                break
            kept.remove(contenders[-1])
        return kept

    def _wanted_s(self, entered: Sequence[MeasuredTrial]) -> float:
        return confirmation_s(
            num_contestants=len(entered),
            cold_start_s=self._engine.pool.cold_start_s,
            step_s=max(t.measured.speed.step_s for t in entered),
        )

    def _fit_together(self, trials: Sequence[MeasuredTrial]) -> bool:
        """Whether all contestants may hold their memory at the same time."""
        pool = self._engine.pool
        if pool.is_on_device:
            return sum(t.total_bytes for t in trials) <= self._engine.plan.limit_bytes
        held_bytes = sum(
            t.total_bytes * pool.num_local_ranks(t.configuration.world_size) for t in trials
        )
        return held_bytes <= read_memory().available_bytes * TOGETHER_FRACTION

    def run(self) -> Verdict | None:
        try:
            for contestant in self._contestants:
                contestant.announce()
                contestant.launch()
            for contestant in self._contestants:
                self._hold(contestant, self._unless_stopped(contestant.enter))
            for contestant in self._contestants:
                contestant.launch()
            for contestant in self._contestants:
                self._hold(contestant, self._unless_stopped(contestant.wait))
            rounds = 0
            while rounds < MAX_ROUNDS and not self._is_settled(rounds):
                if self._is_to_end(rounds):
                    break
                self._go_round(rounds)
                rounds += 1
                if rounds % MIN_ROUNDS == 0 and not self._is_settled(rounds):
                    self._tell(rounds)
            return self._verdict(rounds)
        except AutotuneError as error:
            # It says nothing about them, and nothing that began is left without an end.
            for contestant in self._contestants:
                if contestant.is_announced:
                    self._finish(contestant, Stopped(cause=error.cause))
            raise
        finally:
            for contestant in self._contestants:
                contestant.close()

    def _go_round(self, number: int) -> None:
        first = number % len(self._contestants)
        for contestant in self._contestants[first:] + self._contestants[:first]:
            block = partial(contestant.block, self._steps_per_block)
            self._hold(contestant, self._unless_stopped(block))

    def _unless_stopped(self, action: Callable[[], Outcome | None]) -> Outcome | None:
        """Measures, unless somebody asked the run to end: what is half done proves nothing."""
        self._session.listen()
        return Stopped(cause=STOPPED) if self._session.is_stopped() else action()

    def _is_to_end(self, rounds: int) -> bool:
        """Whether a request or the time ends it."""
        self._session.listen()
        is_over = rounds >= LEAST_ROUNDS and self._session.remaining_s <= 0
        return is_over or self._session.is_stopped()

    def _tell(self, rounds: int) -> None:
        """Says how far it is, and waits until whoever shows it is done."""
        leader, reference = self._leader(), self._reference()
        if leader is reference:
            # How it compares with itself tells nothing.
            leader = self._fastest([c for c in self._contestants if c is not reference], reference)
        ratio = self._ratio(leader, reference)
        self._session.emit(
            ConfirmationContinued(
                num_rounds=rounds,
                most_rounds=MAX_ROUNDS,
                speedup=ratio.value,
                speedup_ci95=ratio.interval,
            )
        )
        time.sleep(SHOW_S)

    def _hold(self, contestant: Contestant, fault: Outcome | None) -> None:
        """Calls the contest off where a contestant did not hold."""
        if fault is None:
            return
        self._finish(contestant, fault)
        why = STOPPED if self._session.is_stopped() else "Another configuration did not hold."
        for other in self._contestants:
            if other is not contestant:
                self._finish(other, Stopped(cause=why))
        if isinstance(fault, Failed | TimedOut):
            measured = self._engine.history.measured
            is_left = any(t.configuration == contestant.configuration for t in measured)
            self._session.warn(
                f"Trial {contestant.number} ({contestant.configuration}) did not hold in a fresh "
                f"process: {fault.cause}",
                "It is measured once more."
                if is_left
                else "It is not recommended; the next best takes its place.",
            )
        is_unwanted = isinstance(fault, Stopped) and not self._session.is_stopped()
        if is_unwanted:
            self._session.warn(
                f"Trial {contestant.number} ({contestant.configuration}) was stopped.",
                "It is not recommended; the next best takes its place.",
            )
        raise ContestantLostError(contestant.configuration, is_unwanted=is_unwanted)

    def _finish(self, contestant: Contestant, outcome: Outcome) -> None:
        result = TrialResult(
            outcome=outcome,
            wall_s=contestant.wall_s,
            overhead_s=max(0.0, contestant.wall_s - contestant.steps_s),
        )
        self._engine.finished(contestant.number, contestant.configuration, "confirm", result)

    def _reference(self) -> Contestant:
        """The baseline, or the first where the baseline could not be measured."""
        return next((c for c in self._contestants if c.is_baseline), self._contestants[0])

    def _ratio(self, contestant: Contestant, reference: Contestant) -> Ratio:
        if contestant is reference:
            return Ratio(value=1.0, low=1.0, high=1.0, num_pairs=len(contestant.blocks))
        return ratio_of_times(contestant.s_per_sample, reference.s_per_sample)

    def _gain(self, contestant: Contestant, reference: Contestant) -> Ratio:
        """The ratio of speeds, weighed with what a sample of each teaches."""
        speeds = self._ratio(contestant, reference)
        history = self._engine.history
        return history.gain(speeds, contestant.configuration, reference.configuration)

    def _leader(self) -> Contestant:
        """The one that learns fastest; of those that tie, the simplest.

        That is plain data parallel before local SGD, and then fewer processes, as long as the
        rounds leave open which is faster; then the one that leaves the most memory free, as long
        as it costs next to nothing; and where memory is the same, the faster one.
        """
        reference = self._reference()
        may_be_chosen = self._engine.history.may_be_chosen
        allowed = [c for c in self._contestants if may_be_chosen(c.configuration)]
        fastest = self._fastest(allowed, reference)
        tied = [c for c in allowed if is_tie(self._gain(c, fastest))]
        simplest = min(simplicity(c.configuration) for c in tied)
        simple = [c for c in tied if simplicity(c.configuration) == simplest]
        fastest = self._fastest(simple, reference)
        near = [c for c in simple if c is fastest or self._gain(c, fastest).is_tie]
        least_bytes = min(c.total_bytes for c in near)
        return self._fastest(
            [c for c in near if self._engine.history.is_same_memory(c.total_bytes, least_bytes)],
            reference,
        )

    def _fastest(self, contestants: Sequence[Contestant], reference: Contestant) -> Contestant:
        return max(contestants, key=lambda c: self._gain(c, reference).value)

    def _is_settled(self, rounds: int) -> bool:
        if rounds < MIN_ROUNDS:
            return False
        leader = self._leader()
        return all(self._is_decided(leader, other) for other in self._contestants)

    def _is_decided(self, leader: Contestant, other: Contestant) -> bool:
        """How much faster than the baseline is a promise; of a contender, that it is not faster."""
        ratio = self._ratio(leader, other)
        is_beaten = ratio.low > 1 and not other.is_baseline
        return is_beaten or ratio.half_width <= HALF_WIDTH

    def _verdict(self, rounds: int) -> Verdict | None:
        if rounds == 0 or self._session.is_stopped():
            # Half a contest proves nothing: a run that goes on confirms anew, in fresh processes.
            for contestant in self._contestants:
                self._finish(contestant, Stopped(cause=STOPPED))
            return None
        leader, reference = self._leader(), self._reference()
        ratio, gain = self._ratio(leader, reference), self._gain(leader, reference)
        weighs = self._engine.history.weighs_differently(
            leader.configuration, reference.configuration
        )
        for contestant in self._contestants:
            self._finish(contestant, contestant.measured())
        best, base = leader.speed, reference.speed
        event = Confirmed(
            number=leader.number,
            baseline_number=reference.number if reference.is_baseline else None,
            speedup=ratio.value,
            speedup_ci95=ratio.interval,
            num_pairs=rounds,
            is_tie=leader is not reference and is_tie(gain),
            settled=self._is_settled(rounds),
            samples_per_s=best.samples_per_s,
            samples_per_s_ci95=samples_per_s_interval(best),
            baseline_samples_per_s=base.samples_per_s,
            baseline_samples_per_s_ci95=samples_per_s_interval(base),
            memory=leader.memory,
            baseline_memory=reference.memory if reference.is_baseline else None,
            useful_speedup=gain.value if weighs else None,
            useful_speedup_ci95=gain.interval if weighs else None,
        )
        self._session.emit(event)
        return Verdict(event=event, chosen=leader.configuration)
