"""Speed and memory of a stepper, in passes of their own.

The speed pass runs under the default allocator with nothing inside a timed window but the steps
and one synchronisation at each end. The memory pass runs under exact counting and is never timed
against anything.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
from accelerate.utils import send_to_device

from autotune.outcome import PROCESS_ALONE, Distances, MemoryUse, Phases, Speed
from autotune.trial.device import (
    high_water_bytes,
    read_peak,
    reset_high_water,
    reset_peak,
    synchronize,
)
from autotune.trial.protocol import Progress
from autotune.trial.ranks.place import ALONE, Company
from autotune.trial.readings.exchange import LocalRounds
from autotune.trial.readings.live_bytes import HostBudgetExceeded, LiveBytes
from autotune.trial.readings.longest import longest_window
from autotune.trial.stepper import Stepper, TrainerStepper, train_window
from autotune.units import format_bytes
from autotune.workload.loaded import Batch

PRIMING_ROWS = 2
"""Rows of the small steps that bring optimizer state and gradients into being."""
MOST_PRIMING_STEPS = 32
"""Loss scaling skips steps until it has come down from its start, a power of two each time."""
PHASE_STEPS = 2
PRECISE_AFTER_STEPS = 5

Report = Callable[[Progress], None]


class DeviceLimitExceeded(torch.OutOfMemoryError):
    """A step ran on the device, in more memory than the process may occupy there.

    Args:
        message: What happened, in words.
        needed_bytes: What the process occupied in all.
    """

    def __init__(self, message: str, needed_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


@dataclass
class SpeedSession:
    """Timed optimizer steps of one prepared stepper, in as many blocks as wanted."""

    stepper: Stepper
    report: Report
    company: Company = ALONE
    """Who else trains in step."""
    watches_drift: bool = False
    """Under local SGD: whether to look at the distances between the ranks before they average."""
    steps_s: float = 0.0
    """Wall time of all optimizer steps so far, timed or not."""
    _warmed_up: int = field(default=0, init=False)
    _local: LocalRounds | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        steps = self.stepper.configuration.local_sgd_steps
        if steps > 1:
            self._local = LocalRounds(self.stepper, steps, watches_drift=self.watches_drift)

    @property
    def distances(self) -> Distances | None:
        """How far apart the ranks were before they averaged; None where nobody watched."""
        return self._local.distances if self._local is not None else None

    def pass_over(self, num_steps: int) -> None:
        """Leaves out the global batches of so many steps."""
        for _ in range(num_steps):
            self.stepper.next_window()

    def warm_up(self, num_steps: int) -> None:
        """Untimed steps: lazy initialisation, caches, the optimizer's state."""
        for step in range(num_steps):
            self.report(Progress(stage="warm-up", step=step, num_steps=num_steps))
            self._timed_step()
        self._warmed_up += num_steps

    def block(
        self,
        *,
        min_steps: int,
        max_steps: int,
        max_seconds: float = math.inf,
        precision: float = 0.0,
    ) -> Speed:
        """Times `min_steps`, and goes on until steps, seconds or precision are reached.

        Under local SGD the steps are whole rounds, and what averaging takes is spread over the
        steps of its round.
        """
        times_s: list[float] = []
        samples: list[int] = []
        tokens: list[int] = []
        losses: list[float | None] = []
        self.report(Progress(stage="speed", step=0, num_steps=max_steps))
        if self._local is not None:
            self.steps_s += self._local.begin()

        def wanted() -> int:
            if len(times_s) < min_steps:
                return min_steps - len(times_s)
            is_enough = (
                len(times_s) >= max_steps
                or sum(times_s) >= max_seconds
                or is_precise(times_s, samples, precision)
            )
            # Ranks agree between chunks of steps, so that no step waits for an agreement.
            chunk = 1 if self.company.num_ranks == 1 else max(1, len(times_s) // 2)
            return 0 if is_enough else min(chunk, max_steps - len(times_s))

        while num_steps := self.company.agree(wanted()):
            if self._local is not None:
                num_steps = self._local.whole(num_steps)
            for _ in range(num_steps):
                step_s, window, loss = self._timed_step()
                times_s.append(step_s)
                samples.append(sum(self.stepper.num_rows(batch) for batch in window))
                tokens.append(sum(self.stepper.workload.count_tokens(batch) for batch in window))
                value = float(loss)
                # A file of the run could not hold a value that is no number.
                losses.append(value if math.isfinite(value) else None)
                if self._local is not None:
                    self.steps_s += self._local.spread(times_s)
        self.report(
            Progress(
                stage="speed",
                step=len(times_s),
                num_steps=len(times_s),
                samples_per_s=sum(samples) / sum(times_s),
            )
        )
        return Speed(
            step_times_s=tuple(times_s),
            step_samples=tuple(samples),
            step_tokens=tuple(tokens),
            losses=tuple(losses),
            num_warmup_steps=self._warmed_up,
        )

    def _timed_step(self) -> tuple[float, list[Batch], torch.Tensor]:
        stepper = self.stepper
        synchronize(stepper.device)
        start_s = time.perf_counter()
        window = stepper.next_window()
        loss = train_window(stepper, window)
        synchronize(stepper.device)
        step_s = time.perf_counter() - start_s
        self.steps_s += step_s
        return step_s, window, loss

    def phases(self, num_steps: int = PHASE_STEPS) -> Phases:
        """Splits the time of a few extra steps into its parts."""
        self.report(Progress(stage="phases", step=0, num_steps=num_steps))
        clock = _PhaseClock(self.stepper)
        start_s = time.perf_counter()
        with clock:
            for _ in range(num_steps):
                train_window(self.stepper, clock.next_window())
        synchronize(self.stepper.device)
        total_s = time.perf_counter() - start_s
        self.steps_s += total_s
        forward_s, backward_s, data_s = clock.forward_s, clock.backward_s, clock.data_s
        return Phases(
            data_s=data_s / num_steps,
            forward_s=forward_s / num_steps,
            backward_s=backward_s / num_steps,
            optimizer_s=max(0.0, total_s - forward_s - backward_s - data_s) / num_steps,
        )


def is_precise(times_s: Sequence[float], samples: Sequence[int], precision: float) -> bool:
    """Whether the mean time per sample is known to a relative standard error of `precision`."""
    if len(times_s) < PRECISE_AFTER_STEPS:
        return False
    per_sample = [time_s / num for time_s, num in zip(times_s, samples, strict=True)]
    mean = statistics.fmean(per_sample)
    return statistics.stdev(per_sample) / math.sqrt(len(per_sample)) <= precision * mean


class _PhaseClock:
    """Times the calls that make up a step by wrapping them for as long as it is entered."""

    def __init__(self, stepper: Stepper) -> None:
        self.forward_s = self.backward_s = self.data_s = 0.0
        self._stepper = stepper
        self._patches = ExitStack()

    def next_window(self) -> list[Batch]:
        start_s = time.perf_counter()
        window = self._stepper.next_window()
        self.data_s += time.perf_counter() - start_s
        return window

    def _timed(self, function: Callable[..., object], name: str) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            synchronize(self._stepper.device)
            start_s = time.perf_counter()
            result = function(*args, **kwargs)
            synchronize(self._stepper.device)
            setattr(self, name, getattr(self, name) + time.perf_counter() - start_s)
            return result

        return call

    def __enter__(self) -> None:
        stepper = self._stepper
        # A Trainer computes its loss itself; the plain loop calls the stepper's.
        owner, name = (
            (stepper.trainer, "compute_loss")
            if isinstance(stepper, TrainerStepper)
            else (stepper, "loss")
        )
        for target, attribute, phase in (
            (owner, name, "forward_s"),
            (stepper.accelerator, "backward", "backward_s"),
        ):
            timed = self._timed(getattr(target, attribute), phase)
            self._patches.enter_context(patch.object(target, attribute, timed))

    def __exit__(self, *_: object) -> None:
        self._patches.close()


def measure_memory(
    stepper: Stepper,
    *,
    limit_bytes: int,
    level_bytes: int,
    others_bytes: int,
    report: Report,
) -> tuple[MemoryUse, float]:
    """Runs whole optimizer steps on the longest samples and counts the peak.

    Args:
        stepper: Fresh: no step was made with it.
        limit_bytes: Total bytes the process may occupy.
        level_bytes: On a CPU, the process after its imports.
        others_bytes: On a device, what other processes hold of it.
        report: Told before each step.

    Returns:
        The memory and the wall time of the steps.

    Raises:
        HostBudgetExceeded: The total would pass the limit.
        DeviceLimitExceeded: It did pass the limit, on a device.
        RuntimeError: The allocator or the device refused.
    """
    window = longest_window(stepper)
    longest = max(
        (
            value.shape[1]
            for batch in window
            for value in batch.values()
            if torch.is_tensor(value) and value.ndim == 2
        ),
        default=None,
    )
    if stepper.device.type == "cpu":
        return _measure_host(stepper, window, longest, limit_bytes, level_bytes, report)
    return _measure_device(stepper, window, longest, limit_bytes, others_bytes, report)


def _steps(stepper: Stepper, window: list[Batch], report: Report) -> float:
    """A step of two rows makes the optimizer's state; the step after it holds the peak.

    With accumulation, gradients live through every later micro-batch, and the longest may be one
    of them. A third adds nothing to the second, and a second after a small first one is as large
    as after a full one, so that a single full micro-batch shows the peak of the whole window.
    """
    start_s = time.perf_counter()
    steps = stepper.configuration.local_sgd_steps
    rounds = LocalRounds(stepper, steps) if steps > 1 else None
    report(Progress(stage="memory", step=0, num_steps=2))
    rows = min(PRIMING_ROWS, stepper.configuration.micro_batch_size)
    priming = [stepper.collate(stepper.workload.typical_rows(rows))]
    for _ in range(MOST_PRIMING_STEPS):
        stepper.set_window(priming)
        train_window(stepper, priming)
        if not stepper.accelerator.optimizer_step_was_skipped:
            break
    report(Progress(stage="memory", step=1, num_steps=2))
    stepper.set_window(window)
    if len(window) == 1:
        del priming
        train_window(stepper, window)
    else:
        train_window(stepper, [*priming, window[0]])
    if rounds is not None:
        rounds.begin()
    synchronize(stepper.device)
    return time.perf_counter() - start_s


def _measure_host(
    stepper: Stepper,
    window: list[Batch],
    longest: int | None,
    limit_bytes: int,
    level_bytes: int,
    report: Report,
) -> tuple[MemoryUse, float]:
    if limit_bytes <= level_bytes:
        raise HostBudgetExceeded(
            f"{PROCESS_ALONE} {format_bytes(level_bytes)} after its imports, and the "
            f"limit leaves {format_bytes(limit_bytes)}.",
            level_bytes,
        )
    reset_high_water()
    live = LiveBytes(limit_bytes - level_bytes, level_bytes)
    live.add(stepper.workload.model.parameters())
    live.add(stepper.workload.model.buffers())
    live.add(value for batch in window for value in batch.values() if torch.is_tensor(value))
    with live:
        steps_s = _steps(stepper, window, report)
    memory = MemoryUse(
        allocated_bytes=live.peak_bytes,
        reserved_bytes=live.peak_bytes,
        outside_bytes=level_bytes,
        total_bytes=live.peak_bytes + level_bytes,
        method="live tensor bytes, operation by operation, plus the process after its imports",
        high_water_bytes=high_water_bytes(),
        longest_tokens=longest,
    )
    return memory, steps_s


def _measure_device(
    stepper: Stepper,
    window: list[Batch],
    longest: int | None,
    limit_bytes: int,
    others_bytes: int,
    report: Report,
) -> tuple[MemoryUse, float]:
    reset_peak(stepper.device)
    # The loader puts every micro-batch on the device as it fetches it: all of a step wait there.
    window = [send_to_device(batch, stepper.device) for batch in window]
    steps_s = _steps(stepper, window, report)
    peak = read_peak(stepper.device, others_bytes)
    total_bytes = peak.reserved_bytes + peak.outside_bytes
    if total_bytes > limit_bytes:
        raise DeviceLimitExceeded(
            f"The process passed the {format_bytes(limit_bytes)} of the device that may be filled "
            f"by {format_bytes(total_bytes - limit_bytes)}.",
            total_bytes,
        )
    memory = MemoryUse(
        allocated_bytes=peak.allocated_bytes,
        reserved_bytes=peak.reserved_bytes,
        outside_bytes=peak.outside_bytes,
        total_bytes=total_bytes,
        method="allocator statistics of the device, plus what the process holds outside of it",
        high_water_bytes=high_water_bytes(),
        longest_tokens=longest,
    )
    return memory, steps_s
