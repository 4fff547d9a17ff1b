"""One trial: memory first, on the longest samples; then, if it fits, speed on typical ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune.configuration import Configuration
from autotune.outcome import (
    Interval,
    Measured,
    MemoryUse,
    Outcome,
    OutOfMemory,
    Speed,
    Stopped,
    TimedOut,
)
from autotune.trial.pool import WorkerPool
from autotune.trial.protocol import (
    MeasureMemory,
    MeasureSpeed,
    MemoryMeasured,
    Progress,
    SpeedMeasured,
)
from probes.memory import read_memory

FENCE_FRACTION = 0.9
"""Part of the host's available memory that a trial may fill before its allocator refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """How long a trial looks at a configuration."""

    limit_bytes: int
    """Total bytes that the training process may occupy, the margin taken off."""
    min_steps: int = 3
    max_steps: int = 12
    max_seconds: float = 4.0
    """Timed steps end after this, once `min_steps` are done."""
    time_limit_s: float = 300.0
    repair_loss: bool = False
    """Whether loss parity needs the Trainer's repair."""
    find_unused: bool = False
    """Whether ranks that exchange gradients must look for parameters without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """A finished trial with what it cost."""

    outcome: Outcome
    wall_s: float
    overhead_s: float
    """Wall time beyond the trial's own optimizer steps."""


def run_trial(
    pool: WorkerPool,
    configuration: Configuration,
    plan: TrialPlan,
    *,
    log: Path,
    interval: Callable[[Speed], Interval],
    on_progress: Callable[[Progress], None],
    should_stop: Callable[[], str | None],
) -> TrialResult:
    """Runs one configuration for a few steps.

    Args:
        pool: Where the worker comes from.
        configuration: What to try.
        plan: How long to look.
        log: File for what is printed during the trial.
        interval: 95 % interval of samples per second, from the timed steps.
        on_progress: Called with each progress message.
        should_stop: A text ends the trial at once.

    Raises:
        AutotuneError: A replaced worker could not load the workload again.
    """
    start_s = time.perf_counter()
    steps_s = 0.0

    def result(outcome: Outcome) -> TrialResult:
        wall_s = time.perf_counter() - start_s
        return TrialResult(outcome=outcome, wall_s=wall_s, overhead_s=max(0.0, wall_s - steps_s))

    num_ranks = configuration.world_size
    available_bytes = read_memory().available_bytes // pool.num_local_ranks(num_ranks)
    fence_bytes = int(available_bytes * FENCE_FRACTION)
    memory_reply = pool.ask(
        MeasureMemory(
            configuration=configuration,
            limit_bytes=plan.limit_bytes,
            memory_fence_bytes=fence_bytes,
            repair_loss=plan.repair_loss,
            find_unused=plan.find_unused,
        ),
        log=log,
        time_limit_s=plan.time_limit_s,
        on_progress=on_progress,
        should_stop=should_stop,
    )
    if not isinstance(memory_reply, MemoryMeasured):
        return result(as_outcome(memory_reply, log))
    steps_s += memory_reply.steps_s
    elapsed_s = time.perf_counter() - start_s
    speed_reply = pool.ask(
        MeasureSpeed(
            configuration=configuration,
            min_steps=plan.min_steps,
            max_steps=plan.max_steps,
            max_seconds=plan.max_seconds,
            with_exchange=num_ranks > 1 and configuration.local_sgd_steps == 1,
            memory_fence_bytes=fence_bytes,
            repair_loss=plan.repair_loss,
            find_unused=plan.find_unused,
        ),
        log=log,
        time_limit_s=max(1.0, plan.time_limit_s - elapsed_s),
        on_progress=on_progress,
        should_stop=should_stop,
    )
    if not isinstance(speed_reply, SpeedMeasured) or speed_reply.speed is None:
        return result(as_outcome(speed_reply, log))
    steps_s += speed_reply.steps_s
    return result(measured(speed_reply, speed_reply.speed, memory_reply.memory, interval))


def measured(
    reply: SpeedMeasured, speed: Speed, memory: MemoryUse, interval: Callable[[Speed], Interval]
) -> Measured:
    """Joins the readings of the two passes."""
    return Measured(
        speed=speed,
        memory=memory,
        samples_per_s=speed.samples_per_s,
        samples_per_s_ci95=interval(speed),
        phases=reply.phases,
        exchange=reply.exchange,
        distances=reply.distances,
    )


def as_outcome(reply: object, log: Path) -> Outcome:
    """The outcome that an answer without readings stands for."""
    from dataclasses import replace

    from autotune.outcome import Failed

    if isinstance(reply, Failed):
        return replace(reply, log=f"{log.parent.parent.name}/{log.parent.name}/{log.name}")
    if isinstance(reply, OutOfMemory | TimedOut | Stopped):
        return reply
    return Failed(cause=f"Unexpected answer of the worker: {type(reply).__name__}.")
