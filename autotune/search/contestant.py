"""One configuration in a fresh process, as confirmation measures it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from autotune.configuration import Configuration
from autotune.outcome import Interlude, Measured, MemoryUse, Outcome, Speed, Stopped, TimedOut
from autotune.search.engine import Engine
from autotune.search.evidence.finished import MeasuredTrial
from autotune.search.evidence.foreseen import evaluation_size
from autotune.search.evidence.statistics import samples_per_s_interval
from autotune.search.trials import as_outcome
from autotune.trial.client import Worker
from autotune.trial.protocol import (
    WARMUP_STEPS,
    Command,
    ContinueSpeed,
    MeasureMemory,
    MeasureSpeed,
    MemoryMeasured,
    OpenSpeed,
    Reply,
    SpeedMeasured,
)


class Contestant:
    """A configuration that is measured again.

    Args:
        engine: Whose trial this is.
        number: Its number.
        trial: The trial of the search that it repeats.
        stays: Whether its process waits between rounds; otherwise every round starts a new one,
            since not all contestants fit into memory together. On a device, where each is measured
            by what is free, the process that waits is another one than that of the memory check.
        is_forked: Whether every measurement is made in a new fork of the warm worker, which all
            contestants share, instead of a process of its own.
        is_baseline: Whether it is the user's present configuration.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        number: int,
        trial: MeasuredTrial,
        stays: bool,
        is_forked: bool,
        is_baseline: bool,
    ) -> None:
        self.number = number
        self.is_baseline = is_baseline
        self.blocks: list[Speed] = []
        self.wall_s = 0.0
        self.steps_s = 0.0
        self._engine = engine
        self._trial = trial
        self._stays = stays
        self._is_forked = is_forked
        self._worker: Worker | None = None
        self._memory: MemoryUse | None = None
        self._interlude: Interlude | None = None
        self._is_open = False
        self.is_announced = False
        """Whether it was said that the trial begins."""

    @property
    def configuration(self) -> Configuration:
        """What is measured."""
        return self._trial.configuration

    @property
    def memory(self) -> MemoryUse:
        """Its peak in the fresh process."""
        return self._memory or self._trial.measured.memory

    @property
    def total_bytes(self) -> int:
        """What it occupies at its peak."""
        return self.memory.total_bytes

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
    def s_per_sample(self) -> list[float]:
        """Seconds per sample of each round."""
        return [sum(b.step_times_s) / sum(b.step_samples) for b in self.blocks]

    def measured(self) -> Measured:
        """Its outcome, once it has been through all rounds."""
        speed = self.speed
        return Measured(
            speed=speed,
            memory=self.memory,
            samples_per_s=speed.samples_per_s,
            samples_per_s_ci95=samples_per_s_interval(speed),
            interlude=self._interlude,
        )

    def announce(self) -> None:
        """Says that the trial begins."""
        self.is_announced = True
        who = " (baseline)" if self.is_baseline else ""
        self._engine.started(
            self.number,
            self.configuration,
            "confirm",
            f"measures trial {self._trial.number}{who} again, in a fresh process",
        )

    def launch(self) -> None:
        """Starts the process, where it may wait beside the others and does not yet."""
        if self._stays and self._worker is None and not self._is_forked:
            self._worker = self._engine.pool.launch(self.configuration.world_size)

    def enter(self) -> Outcome | None:
        """Loads the workload and checks the memory once more; a fault, if there is one."""
        return self._clocked(self._enter)

    def _enter(self) -> Outcome | None:
        fault = None if self._is_forked else self._load()
        if fault is not None:
            return fault
        plan = self._engine.plan
        reply = self._ask(
            MeasureMemory(
                configuration=self.configuration,
                limit_bytes=plan.limit_bytes,
                repair_loss=plan.repair_loss,
                find_unused=plan.find_unused,
                evaluation_batch_size=evaluation_size(self._engine.history, self.configuration)
                or self.configuration.micro_batch_size,
            )
        )
        if not isinstance(reply, MemoryMeasured):
            return as_outcome(reply, self._log)
        self._memory = reply.memory
        self._interlude = reply.interlude
        self.steps_s += reply.steps_s
        if self._is_forked:
            return None
        if self._stays and not self._engine.pool.is_on_device:
            return self._open()
        # What a process holds of a device would count as memory of the next one measured there.
        self.close()
        return None

    def wait(self) -> Outcome | None:
        """Has the process ready for its first round, where it waits between rounds; or a fault."""
        if self._is_forked or not self._stays or self._is_open:
            return None
        return self._clocked(lambda: self._load() or self._open())

    def block(self, num_steps: int) -> Outcome | None:
        """Times some steps; a fault, if there is one."""
        return self._clocked(lambda: self._block(num_steps))

    def _block(self, num_steps: int) -> Outcome | None:
        if self._is_forked:
            reply = self._ask(self._forked_block(num_steps))
        else:
            fault = self._load() if self._worker is None else None
            if fault is None and not self._is_open:
                fault = self._open()
            if fault is not None:
                return fault
            reply = self._ask(ContinueSpeed(num_steps=num_steps))
        if not isinstance(reply, SpeedMeasured) or reply.speed is None:
            return as_outcome(reply, self._log)
        self.blocks.append(reply.speed)
        self.steps_s += reply.steps_s
        if not self._stays:
            self.close()
        return None

    def _forked_block(self, num_steps: int) -> MeasureSpeed:
        """The next block, on the batches that follow those of the blocks before."""
        plan = self._engine.plan
        return MeasureSpeed(
            configuration=self.configuration,
            min_steps=num_steps,
            max_steps=num_steps,
            max_seconds=0.0,
            num_skipped_steps=sum(len(b.step_times_s) for b in self.blocks),
            with_phases=False,
            repair_loss=plan.repair_loss,
            find_unused=plan.find_unused,
        )

    def _load(self) -> Outcome | None:
        pool, num_ranks = self._engine.pool, self.configuration.world_size
        worker = pool.load(self._worker or pool.launch(num_ranks), num_ranks)
        if isinstance(worker, Stopped):
            return worker
        self._worker = worker
        return None

    def _open(self) -> Outcome | None:
        plan = self._engine.plan
        reply = self._ask(
            OpenSpeed(
                configuration=self.configuration,
                repair_loss=plan.repair_loss,
                find_unused=plan.find_unused,
            )
        )
        if not isinstance(reply, SpeedMeasured):
            return as_outcome(reply, self._log)
        self.steps_s += reply.steps_s
        self._is_open = True
        return None

    def _ask(self, command: Command) -> Reply | TimedOut | Stopped:
        if self._is_forked:
            return self._engine.pool.ask(
                command,
                log=self._log,
                time_limit_s=self._engine.plan.time_limit_s,
                on_progress=self._engine.progress(self.number),
                should_stop=self._engine.session.why_stop_now,
            )
        assert self._worker is not None, "loaded before"
        return self._worker.ask(
            command,
            log=self._log,
            time_limit_s=self._engine.plan.time_limit_s,
            on_progress=self._engine.progress(self.number),
            should_stop=self._engine.session.why_stop_now,
        )

    @property
    def _log(self) -> Path:
        return self._engine.session.run.trial(self.number) / "output.log"

    def _clocked(self, action: Callable[[], Outcome | None]) -> Outcome | None:
        start_s = time.perf_counter()
        try:
            return action()
        finally:
            self.wall_s += time.perf_counter() - start_s

    def close(self) -> None:
        """Ends its process."""
        self._is_open = False
        if self._worker is not None:
            self._worker.close()
            self._worker = None
