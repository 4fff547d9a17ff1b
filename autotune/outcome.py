"""How a trial ended: measured, out of memory, failed, timed out, stopped.

The five kinds form a closed union; `kind` tells them apart in JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Interval: TypeAlias = tuple[float, float]
"""Lower and upper end of a 95 % interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes that the training process occupied at its peak (design: what a memory limit means)."""

    allocated_bytes: int
    """Peak of live tensor bytes (device: of the allocator's allocations)."""
    reserved_bytes: int
    """Peak of what the allocator held; on a CPU, which has no such layer, the allocated bytes."""
    outside_bytes: int
    """What stands outside the allocator: context and workspaces, or the process after import."""
    total_bytes: int
    """Reserved plus outside: what is held against the limit."""
    method: str
    """How it was counted, in words."""
    high_water_bytes: int | None = None
    """Resident high-water mark of the process: a reading of its own, allocator slack included."""
    longest_tokens: int | None = None
    """Tokens per sample of the batch that was fed, padding included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Where the time of one optimizer step goes. Diagnostic: these steps are not the timed ones."""

    data_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Timed optimizer steps, one window each, every configuration over the same global batches."""

    step_times_s: tuple[float, ...]
    """Wall time of each timed optimizer step; the n-th always trains on the n-th global batch."""
    step_samples: tuple[int, ...]
    """Samples that each of these steps trained on."""
    step_tokens: tuple[int, ...]
    """Tokens of each of these steps without padding; zeros where samples have no tokens."""
    losses: tuple[float | None, ...] = ()
    """Loss of each timed step, averaged over its micro-batches."""
    num_warmup_steps: int = 0

    @property
    def samples_per_s(self) -> float:
        """Samples over seconds, over all timed steps."""
        return sum(self.step_samples) / sum(self.step_times_s)

    @property
    def tokens_per_s(self) -> float:
        """Unpadded tokens over seconds, over all timed steps."""
        return sum(self.step_tokens) / sum(self.step_times_s)

    @property
    def step_s(self) -> float:
        """Mean wall time of an optimizer step."""
        return sum(self.step_times_s) / len(self.step_times_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What the ranks of a trial exchange, and what that costs; all times are the slowest rank's."""

    compute_s: float
    """Median wall time of an optimizer step in which the ranks exchange nothing."""
    ddp_step_s: float
    """Median wall time of an optimizer step of plain data parallel training, as measured."""
    exposed_s: float
    """What the exchange of gradients adds to a step: the DDP step less the one without."""
    averaging_s: float
    """Median wall time of one averaging of the parameters, all tensors fused."""
    averaging_bytes: int
    """Bytes of the tensors that one averaging sends through the group."""
    num_collectives_per_step: float
    """Collectives that an optimizer step makes besides the exchange of gradients."""
    collectives: tuple[str, ...] = ()
    """Names of these hidden collectives, with what calls them where that is known."""
    interfaces: tuple[str, ...] = ()
    """Network interface that each rank was told to use; empty where none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """How far apart the ranks of local SGD were before each averaging, and how far they had come.

    Estimates from a sample of what is trained, where that is large; the learning rate decides the
    scale of both.
    """

    apart_squared: tuple[float, ...]
    """Squared distance of a rank's parameters from their mean, in the mean over the ranks."""
    moved_squared: tuple[float, ...]
    """Squared distance of that mean from the one of the averaging before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientWindow:
    """Squared norms of the gradients of one optimizer step, in fp32 and without loss scaling.

    A micro-gradient is the mean over the rows of its micro-batch: what the micro-batch adds to the
    accumulated gradient, times the number of micro-batches. So the mean of the micro-gradients is
    the gradient that the optimizer steps with, before clipping.
    """

    step: int
    """Optimizer steps that training had made before this one."""
    micro_squared_norms: tuple[float, ...]
    """Of each micro-gradient, over all ranks."""
    mean_squared_norm: float
    """Of the mean of the micro-gradients over all ranks."""
    preconditioned_micro_squared_norms: tuple[float, ...] | None = None
    """The same with every gradient divided by `sqrt(v) + eps`, as Adam divides its step; None
    where the optimizer keeps no second moment, or has not kept it for long enough."""
    preconditioned_mean_squared_norm: float | None = None
    loss: float | None = None
    """Of the window, as the loop tells it; the mean over the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNorms:
    """Gradient norms over a stretch of training steps of one configuration."""

    windows: tuple[GradientWindow, ...]
    """One for each optimizer step, in their order."""
    num_micro_batches: int
    """Micro-gradients of each window, over all ranks; at least 2."""
    rows_per_micro_batch: int
    num_skipped: int = 0
    """Steps left out, since a gradient was not finite or the micro-batches differed in size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interlude:
    """What training does between its steps, tried once: an evaluation step and a save."""

    evaluation_batch_size: int
    """Rows of the evaluation step, the longest of the training data."""
    evaluation_bytes: int | None
    """What the process occupied at most during it; None where it did not run."""
    is_saved: bool
    """Whether weights and optimizer state were written."""
    faults: tuple[str, ...] = ()
    """Why one of them did not run, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The configuration ran, within the limit, and these are its readings."""

    speed: Speed
    memory: MemoryUse
    samples_per_s: float
    samples_per_s_ci95: Interval
    phases: Phases | None = None
    exchange: Exchange | None = None
    """None where one rank trained, or where it was not measured."""
    distances: Distances | None = None
    """None where the ranks exchanged gradients, or one rank trained."""
    interlude: Interlude | None = None
    """None where neither evaluation nor a save was tried."""
    kind: Literal["measured"] = "measured"


PROCESS_ALONE = "The process alone occupies"
"""How the cause begins where a limit is below what a process takes before it trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The configuration needs more memory than the limit, the machine or the device allows."""

    where: Literal["device", "host"]
    cause: str
    """What refused the memory, in words: the limit, the allocator or the system."""
    needed_at_least_bytes: int | None = None
    """A lower bound of the need, where one is known."""
    limit_bytes: int | None = None
    is_certain: bool = True
    """False where a killed process only suggests memory."""
    kind: Literal["out_of_memory"] = "out_of_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The configuration does not run, and memory is not the reason."""

    cause: str
    remedy: str | None = None
    log: str | None = None
    """Path of the trial's log, relative to the run directory."""
    is_killed: bool = False
    """Whether its process was killed from outside, which says nothing of the configuration."""
    kind: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """The trial did not end within its time limit and was ended."""

    limit_s: float
    cause: str
    kind: Literal["timed_out"] = "timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """Somebody stopped the trial; it says nothing about the configuration."""

    cause: str
    kind: Literal["stopped"] = "stopped"


Outcome: TypeAlias = Measured | OutOfMemory | Failed | TimedOut | Stopped
"""How a trial ended."""

Purpose: TypeAlias = Literal["baseline", "search", "confirm", "memory"]
"""Why a trial was run."""
