"""What ranks exchange in a step: compute and exchange apart, averaging, hidden collectives.

Steps with and without the exchange of gradients run in pairs over the same rows, so that batches of
different lengths do not pass for communication.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from autotune.outcome import Distances, Exchange
from autotune.runtime.averaging import ParameterAverage
from autotune.trial.device import synchronize
from autotune.trial.protocol import Progress
from autotune.trial.ranks.place import Company
from autotune.trial.readings.drift import DriftWatch
from autotune.trial.stepper import AccelerateStepper, Stepper, TrainerStepper, train_window
from autotune.workload.loaded import Batch

NUM_PAIRS = 3
NUM_AVERAGINGS = 3
ALONE_S = 1.5
"""Time that steps without exchange get in all: short ones scatter, and are repeated."""
MAX_REPEATS = 6
"""Steps without exchange for each one with it."""
COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
)
"""Functions of `torch.distributed` that a training loop may call beside the exchange of gradients,
which happens inside the wrapped model."""


class LocalRounds:
    """Rounds of local SGD: no exchange of gradients, and an averaging at the end of each round.

    Args:
        stepper: With a model that is wrapped for several ranks.
        num_steps: Optimizer steps of a round.
        watches_drift: Whether to look at the distances between the ranks, outside of what is timed.
    """

    def __init__(self, stepper: Stepper, num_steps: int, *, watches_drift: bool = False) -> None:
        self._stepper = stepper
        self._num_steps = num_steps
        self._done = 0
        self._average = ParameterAverage(wrapped(stepper.model))
        self._watch = DriftWatch(self._average.parameters) if watches_drift else None
        wrapped(stepper.model).require_backward_grad_sync = False

    def begin(self) -> float:
        """Starts a round with equal parameters; returns the seconds that takes."""
        self._done = 0
        return self._averaging_s()

    def whole(self, num_steps: int) -> int:
        """So many steps, rounded up to whole rounds."""
        return -(-num_steps // self._num_steps) * self._num_steps

    def spread(self, times_s: list[float]) -> float:
        """After a step: averages where it ends a round, and spreads the time over its steps.

        Returns:
            The seconds that averaging took.
        """
        self._done += 1
        if self._done % self._num_steps:
            return 0.0
        averaging_s = self._averaging_s()
        for index in range(len(times_s) - self._num_steps, len(times_s)):
            times_s[index] += averaging_s / self._num_steps
        return averaging_s

    @property
    def distances(self) -> Distances | None:
        """How far apart the ranks were, as this one saw it; None where nobody watched."""
        return self._watch.distances if self._watch is not None else None

    def _averaging_s(self) -> float:
        if self._watch is not None:
            self._watch.before()
        start_s = time.perf_counter()
        # As local SGD does, the ranks compare their counts first.
        self._average.average(num_steps=self._done)
        synchronize(self._stepper.device)
        averaging_s = time.perf_counter() - start_s
        if self._watch is not None:
            self._watch.after()
        return averaging_s


def measure_exchange(
    stepper: Stepper, company: Company, report: Callable[[Progress], None]
) -> tuple[Exchange, float]:
    """Tells compute, exposed exchange and averaging apart, on this rank.

    Args:
        stepper: Warmed up, on each of several ranks.
        company: Keeps the ranks in step.
        report: Told of the progress.

    Returns:
        This rank's readings, and the wall time of all steps and averagings.
    """
    start_s = time.perf_counter()
    ddp_s, alone_s, averaging_s = [], [], []
    calls: Counter[str] = Counter()
    num_repeats = 1
    for pair in range(NUM_PAIRS):
        report(Progress(stage="exchange", step=pair, num_steps=NUM_PAIRS))
        window = stepper.next_window()
        company.agree(0)
        with counted(calls) if pair == 0 else ExitStack():
            ddp_s.append(_step_s(stepper, window))
        company.agree(0)
        with without_exchange(stepper):
            alone_s.append(_step_s(stepper, window))
            if pair == 0:
                num_repeats = company.agree(_num_repeats(alone_s[0]))
            # As between two averagings, the ranks do not wait for each other here.
            alone_s += [_step_s(stepper, window) for _ in range(num_repeats - 1)]
    average = ParameterAverage(wrapped(stepper.model))
    for _ in range(1 + NUM_AVERAGINGS):
        company.agree(0)
        synchronize(stepper.device)
        begin_s = time.perf_counter()
        average.average(num_steps=0)
        synchronize(stepper.device)
        averaging_s.append(time.perf_counter() - begin_s)
    ddp_step_s, compute_s = statistics.median(ddp_s), statistics.median(alone_s)
    exchange = Exchange(
        compute_s=compute_s,
        ddp_step_s=ddp_step_s,
        exposed_s=max(0.0, ddp_step_s - compute_s),
        # The first one makes its buffers and connections.
        averaging_s=statistics.median(averaging_s[1:]),
        averaging_bytes=average.num_bytes,
        num_collectives_per_step=float(sum(calls.values())),
        collectives=tuple(sorted(calls)),
        interfaces=tuple(filter(None, [os.environ.get("GLOO_SOCKET_IFNAME")])),
    )
    return exchange, time.perf_counter() - start_s


def _num_repeats(alone_s: float) -> int:
    """How often a step without exchange is made in each pair."""
    return max(1, min(MAX_REPEATS, round(ALONE_S / (NUM_PAIRS * max(alone_s, 1e-6)))))


def _step_s(stepper: Stepper, window: list[Batch]) -> float:
    synchronize(stepper.device)
    start_s = time.perf_counter()
    stepper.set_window(window)
    train_window(stepper, window)
    synchronize(stepper.device)
    return time.perf_counter() - start_s


@contextmanager
def counted(calls: Counter[str]) -> Iterator[None]:
    """Counts the collectives that are called by name while the block runs."""

    def counting(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    with ExitStack() as patches:
        for name in COLLECTIVES:
            function = getattr(dist, name, None)
            if function is not None:
                patches.enter_context(patch.object(dist, name, counting(name, function)))
        yield


@contextmanager
def without_exchange(stepper: Stepper) -> Iterator[None]:
    """Steps as local SGD makes them between two averagings: this rank trains by itself."""
    # With local SGD neither loop counts over all ranks what its loss is a mean of.
    changes: list[tuple[object, str]] = [(wrapped(stepper.model), "require_backward_grad_sync")]
    if isinstance(stepper, TrainerStepper):
        changes.append((stepper.trainer.args, "average_tokens_across_devices"))
    elif isinstance(stepper, AccelerateStepper):
        changes.append((stepper, "shares_items"))
    with ExitStack() as patches:
        for target, name in changes:
            if getattr(target, name, None):
                before = getattr(target, name)
                setattr(target, name, False)
                patches.callback(setattr, target, name, before)
        yield


def wrapped(model: torch.nn.Module) -> DistributedDataParallel:
    """The data-parallel wrapper of a prepared model.

    Raises:
        TypeError: It has none: one process, or another kind of parallel training.
    """
    inner = getattr(model, "_orig_mod", model)
    if not isinstance(inner, DistributedDataParallel):
        raise TypeError(f"A {type(inner).__name__} does not exchange gradients between ranks.")
    return inner
