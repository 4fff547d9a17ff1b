"""Measures best, contenders and baseline again, interleaved, in fresh processes.

Every contestant has a process of its own that was never used before. In each round every one of
them trains on the same next global batches, in an order that turns from round to round; what the
machine does meanwhile hits all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil

from autotune.configuration import Configuration
from autotune.events import Confirmed
from autotune.outcome import Failed, Measured, MemoryUse, Outcome, Speed, Stopped, TimedOut
from autotune.search.engine import Engine
from autotune.search.finished import FinishedTrial, MeasuredTrial
from autotune.search.ranking import Standing
from autotune.search.statistics import Ratio, ratio_of_times, samples_per_s_interval
from autotune.search.trials import TrialResult, as_outcome
from autotune.trial.client import Worker
from autotune.trial.protocol import (
    ContinueSpeed,
    MeasureMemory,
    MemoryMeasured,
    OpenSpeed,
    SpeedMeasured,
)

MIN_ROUNDS = 4
MAX_ROUNDS = 12
HALF_WIDTH = 0.02
"""The interval of the ratio is settled once it is at most this far from its middle."""
BLOCK_S = 1.5
"""Aimed-at time of one contestant in one round."""
WARMUP_STEPS = 2
TOGETHER_FRACTION = 0.7
"""Part of the free host memory that waiting contestants may hold at the same time."""


@dataclass
class Contestant:
    """One configuration in a fresh process."""

    number: int
    configuration: Configuration
    worker: Worker
    memory: MemoryUse
    wall_s: float
    steps_s: float
    blocks: list[Speed] = field(default_factory=list)

    @property
    def speed(self) -> Speed:
        """All blocks as one."""
        return Speed(
            step_times_s=tuple(t for b in self.blocks for t in b.step_times_s),
            step_samples=tuple(n for b in self.blocks for n in b.step_samples),
            step_tokens=tuple(n for b in self.blocks for n in b.step_tokens),
            losses=tuple(loss for b in self.blocks for loss in b.losses),
            num_warmup_steps=WARMUP_STEPS,
        )

    @property
    def block_times_s(self) -> list[float]:
        """Seconds per sample of each round."""
        return [sum(b.step_times_s) / sum(b.step_samples) for b in self.blocks]


class ContestantLostError(Exception):
    """A contestant could not be measured; its outcome is in the journal and the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What confirmation found."""

    event: Confirmed
    chosen: Configuration
    is_baseline: bool


def confirmation_s(
    *, num_contestants: int, cold_start_s: float, trial_s: float, rounds: int = MIN_ROUNDS
) -> float:
    """Seconds that confirming will take at least, from what trials and cold starts took."""
    per_round_s = num_contestants * max(BLOCK_S, trial_s / 4)
    return num_contestants * (cold_start_s + trial_s) + rounds * per_round_s


def confirm(engine: Engine, baseline: Configuration) -> Verdict | None:
    """Settles which configuration is recommended.

    A contestant that fails here is struck out and the next best takes its place.

    Returns:
        The verdict; None where the budget or a request ended it first, or nothing is left.

    Raises:
        AutotuneError: A worker could not load the workload again.
    """
    while True:
        leaders = Standing(engine.history.measured).contenders()
        if not leaders or engine.session.should_end() or engine.session.remaining_s <= 0:
            return None
        baseline_trial = engine.history.baseline
        entered = list(leaders)
        if baseline_trial is not None and baseline_trial not in entered:
            entered.append(baseline_trial)
        try:
            return _Contest(engine, entered, baseline).run()
        except ContestantLostError:
            continue


class _Contest:
    def __init__(
        self, engine: Engine, entered: Sequence[MeasuredTrial], baseline: Configuration
    ) -> None:
        self.engine = engine
        self.session = engine.session
        self.baseline = baseline
        self.contestants: list[Contestant] = []
        self._entered = self._affordable(entered)
        step_s = max(t.measured.speed.step_s for t in self._entered)
        self._steps_per_block = max(1, round(BLOCK_S / step_s))

    def _affordable(self, entered: Sequence[MeasuredTrial]) -> list[MeasuredTrial]:
        """Leaves contenders out until time and memory suffice; best and baseline stay in."""
        kept = list(entered)

        def is_core(trial: MeasuredTrial) -> bool:
            return trial is entered[0] or trial.configuration == self.baseline

        def fits() -> bool:
            wanted_s = confirmation_s(
                num_contestants=len(kept),
                cold_start_s=self.engine.pool.cold_start_s,
                trial_s=max(_steps_s(t) for t in kept),
            )
            held = sum(t.total_bytes for t in kept)
            room = psutil.virtual_memory().available * TOGETHER_FRACTION
            return wanted_s <= self.session.remaining_s and held <= room

        while not fits():
            extra = next((t for t in reversed(kept) if not is_core(t)), None)
            if extra is None:
                break
            kept.remove(extra)
        return kept

    def run(self) -> Verdict | None:
        try:
            for trial in self._entered:
                self._enter(trial)
            rounds = 0
            while rounds < MAX_ROUNDS and not self._is_settled(rounds):
                if rounds and self.session.remaining_s <= 0:
                    break
                order = self.contestants[rounds % len(self.contestants) :]
                order += self.contestants[: rounds % len(self.contestants)]
                for contestant in order:
                    self._block(contestant)
                rounds += 1
            return self._verdict(rounds)
        finally:
            for contestant in self.contestants:
                contestant.worker.close()

    def _enter(self, trial: MeasuredTrial) -> None:
        """Starts a fresh process, checks its memory and warms it up."""
        engine = self.engine
        number = engine.take_number()
        is_baseline = trial.configuration == self.baseline
        engine.started(
            number,
            trial.configuration,
            "confirm",
            f"measures trial {trial.number}{' (baseline)' if is_baseline else ''} again, "
            "in a fresh process",
        )
        start_s = time.perf_counter()
        worker = engine.pool.fresh()
        if isinstance(worker, Stopped):
            self._lose(number, trial.configuration, worker, start_s)
        assert isinstance(worker, Worker)
        try:
            self._enter_worker(trial, number, worker, start_s)
        except BaseException:
            worker.close()
            raise

    def _enter_worker(
        self, trial: MeasuredTrial, number: int, worker: Worker, start_s: float
    ) -> None:
        engine = self.engine
        log = self.session.run.trial(number) / "output.log"
        limit_s = engine.plan.time_limit_s
        memory = worker.ask(
            MeasureMemory(
                configuration=trial.configuration,
                limit_bytes=engine.plan.limit_bytes,
                repair_loss=engine.plan.repair_loss,
            ),
            log=log,
            time_limit_s=limit_s,
            on_progress=engine.progress(number),
            should_stop=self.session.why_stop_now,
        )
        if not isinstance(memory, MemoryMeasured):
            self._lose(number, trial.configuration, as_outcome(memory, log), start_s)
        assert isinstance(memory, MemoryMeasured)
        opened = worker.ask(
            OpenSpeed(
                configuration=trial.configuration,
                num_warmup_steps=WARMUP_STEPS,
                repair_loss=engine.plan.repair_loss,
            ),
            log=log,
            time_limit_s=limit_s,
            on_progress=engine.progress(number),
            should_stop=self.session.why_stop_now,
        )
        if not isinstance(opened, SpeedMeasured):
            self._lose(number, trial.configuration, as_outcome(opened, log), start_s)
        assert isinstance(opened, SpeedMeasured)
        self.contestants.append(
            Contestant(
                number=number,
                configuration=trial.configuration,
                worker=worker,
                memory=memory.memory,
                wall_s=time.perf_counter() - start_s,
                steps_s=memory.steps_s + opened.steps_s,
            )
        )

    def _block(self, contestant: Contestant) -> None:
        start_s = time.perf_counter()
        log = self.session.run.trial(contestant.number) / "output.log"
        reply = contestant.worker.ask(
            ContinueSpeed(num_steps=self._steps_per_block),
            log=log,
            time_limit_s=self.engine.plan.time_limit_s,
            on_progress=self.engine.progress(contestant.number),
            should_stop=self.session.why_stop_now,
        )
        if not isinstance(reply, SpeedMeasured) or reply.speed is None:
            self._lose(contestant.number, contestant.configuration, as_outcome(reply, log), start_s)
            return
        contestant.blocks.append(reply.speed)
        contestant.wall_s += time.perf_counter() - start_s
        contestant.steps_s += reply.steps_s

    def _lose(
        self, number: int, configuration: Configuration, outcome: Outcome, start_s: float
    ) -> None:
        """Writes a contestant's end down and calls the contest off."""
        wall_s = time.perf_counter() - start_s
        self.engine.finished(
            number,
            configuration,
            "confirm",
            TrialResult(outcome=outcome, wall_s=wall_s, overhead_s=wall_s),
        )
        for other in self.contestants:
            if other.number != number:
                self._finish(other, Stopped(cause="Another configuration failed; measured again."))
        if isinstance(outcome, Failed | TimedOut):
            self.session.warn(
                f"Trial {number} ({configuration}) did not hold in a fresh process: "
                f"{outcome.cause}",
                "It is not recommended; the next best takes its place.",
            )
        raise ContestantLostError

    def _finish(self, contestant: Contestant, outcome: Outcome) -> FinishedTrial:
        result = TrialResult(
            outcome=outcome,
            wall_s=contestant.wall_s,
            overhead_s=max(0.0, contestant.wall_s - contestant.steps_s),
        )
        return self.engine.finished(contestant.number, contestant.configuration, "confirm", result)

    def _reference(self) -> Contestant:
        """The baseline, or the first where the baseline could not be measured."""
        return next(
            (c for c in self.contestants if c.configuration == self.baseline),
            self.contestants[0],
        )

    def _ratio(self, contestant: Contestant, reference: Contestant) -> Ratio:
        return ratio_of_times(contestant.block_times_s, reference.block_times_s)

    def _leader(self) -> Contestant:
        """The fastest; of those that tie with it, the one that leaves the most memory free."""
        fastest = min(self.contestants, key=lambda c: sum(c.block_times_s) / len(c.block_times_s))
        tied = [c for c in self.contestants if c is fastest or self._ratio(c, fastest).is_tie]
        return min(tied, key=lambda c: c.memory.total_bytes)

    def _is_settled(self, rounds: int) -> bool:
        if rounds < MIN_ROUNDS:
            return False
        leader = self._leader()
        return all(
            self._ratio(leader, other).half_width <= HALF_WIDTH
            for other in self.contestants
            if other is not leader
        )

    def _verdict(self, rounds: int) -> Verdict | None:
        if rounds == 0:
            return None
        is_settled = self._is_settled(rounds)
        leader, reference = self._leader(), self._reference()
        has_baseline = reference.configuration == self.baseline
        ratio = (
            self._ratio(leader, reference)
            if leader is not reference
            else Ratio(value=1.0, low=1.0, high=1.0, num_pairs=rounds)
        )
        for contestant in self.contestants:
            speed = contestant.speed
            self._finish(
                contestant,
                Measured(
                    speed=speed,
                    memory=contestant.memory,
                    samples_per_s=speed.samples_per_s,
                    samples_per_s_ci95=samples_per_s_interval(speed),
                ),
            )
        event = Confirmed(
            number=leader.number,
            baseline_number=reference.number if has_baseline else None,
            speedup=ratio.value,
            speedup_ci95=ratio.interval,
            num_pairs=rounds,
            is_tie=leader is not reference and ratio.is_tie,
            settled=is_settled,
            samples_per_s=leader.speed.samples_per_s,
            samples_per_s_ci95=samples_per_s_interval(leader.speed),
            baseline_samples_per_s=reference.speed.samples_per_s,
            baseline_samples_per_s_ci95=samples_per_s_interval(reference.speed),
            memory=leader.memory,
            baseline_memory=reference.memory if has_baseline else None,
        )
        self.session.emit(event)
        return Verdict(
            event=event,
            chosen=leader.configuration,
            is_baseline=leader.configuration == self.baseline,
        )


def _steps_s(trial: MeasuredTrial) -> float:
    """Time of the memory check, warm-up and first block of a trial, roughly."""
    return trial.measured.speed.step_s * (WARMUP_STEPS + 2)
