"""What engine and worker say to each other: JSON lines on a channel that is not stdout.

The engine sends one command at a time; the worker answers with any number of progress lines and
one reply. Commands and replies are data only, so that a reply can be kept and replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, JsonValue, TypeAdapter

from autotune.configuration import Configuration
from autotune.errors import ERRORS_BY_NAME, AutotuneError
from autotune.outcome import (
    Distances,
    Exchange,
    Failed,
    GradientNorms,
    Interlude,
    MemoryUse,
    OutOfMemory,
    Phases,
    Speed,
    Stopped,
    TimedOut,
)
from autotune.workload.facts import CheckpointingForm, WorkloadFacts
from probes.collectives.said import Said

WARMUP_STEPS = 2
"""Untimed steps before the first timed one. The same everywhere, so that the n-th timed step of
any measurement trains on the same global batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureMemory:
    """Optimizer steps on the longest samples, with optimizer state present, counted exactly."""

    configuration: Configuration
    limit_bytes: int
    """Total bytes that the process may occupy; more is out of memory."""
    memory_fence_bytes: int | None = None
    """On a CPU: bytes of data the process may add before the allocator refuses."""
    repair_loss: bool = False
    """Whether loss parity needs `model_accepts_loss_kwargs = False`."""
    find_unused: bool = False
    """Whether ranks that exchange gradients must look for parameters without one."""
    evaluation_batch_size: int | None = None
    """After the steps, try an evaluation step of so many rows, and a save; None tries neither."""
    kind: Literal["measure_memory"] = "measure_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSpeed:
    """Timed optimizer steps on typical samples in the user's sampler order."""

    configuration: Configuration
    min_steps: int
    max_steps: int
    max_seconds: float
    """The timed part ends after the step that passes this, once `min_steps` are done."""
    precision: float = 0.01
    """It ends as well once the mean time per sample is known to this, as a relative standard
    error, from at least `PRECISE_AFTER_STEPS` steps."""
    num_warmup_steps: int = WARMUP_STEPS
    num_skipped_steps: int = 0
    """Global batches that are passed over before the first step: blocks that are timed in processes
    of their own go on with the data."""
    with_phases: bool = True
    with_exchange: bool = False
    """On several ranks: whether a few further steps tell compute and exchange apart."""
    memory_fence_bytes: int | None = None
    """On a CPU: bytes of data the process may add before the allocator refuses."""
    repair_loss: bool = False
    """Whether loss parity needs `model_accepts_loss_kwargs = False`."""
    find_unused: bool = False
    """Whether ranks that exchange gradients must look for parameters without one."""
    kind: Literal["measure_speed"] = "measure_speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueSpeed:
    """A further block of timed steps in a session opened with `OpenSpeed`."""

    num_steps: int
    kind: Literal["continue_speed"] = "continue_speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSpeed:
    """Prepares a configuration in this very process and warms it up.

    From then on the worker takes `ContinueSpeed` alone.
    """

    configuration: Configuration
    num_warmup_steps: int = WARMUP_STEPS
    repair_loss: bool = False
    find_unused: bool = False
    kind: Literal["open_speed"] = "open_speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckParity:
    """The same rows as 1×B and as k×B/k: do loss and gradient norm agree?"""

    num_rows: int
    accumulation_steps: int
    kind: Literal["check_parity"] = "check_parity"


@dataclass(frozen=True, slots=True, kw_only=True)
class TryCheckpointing:
    """Counts what each checkpointing form keeps for the backward pass of one small batch."""

    every_n_layers: tuple[int, ...]
    kind: Literal["try_checkpointing"] = "try_checkpointing"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureGradients:
    """Optimizer steps whose micro-gradients are read, for the noise scale."""

    configuration: Configuration
    num_windows: int
    num_warmup_steps: int
    repair_loss: bool = False
    find_unused: bool = False
    kind: Literal["measure_gradients"] = "measure_gradients"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureLink:
    """Collectives between the ranks over message sizes, on the group that trials run on."""

    num_ranks: int
    payload_bytes: int
    """The largest message."""
    measuring_s: float
    """Time for everything; large messages are left out where it is short."""
    kind: Literal["measure_link"] = "measure_link"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBeside:
    """Starts work on the loaded workload, in a fork that goes on while other commands run."""

    module: str
    """Its `run(workload, document, scratch)` is called."""
    document: dict[str, JsonValue]
    """What is to be done."""
    kind: Literal["start_beside"] = "start_beside"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitBeside:
    """Waits for the end of what `StartBeside` started."""

    time_limit_s: float
    """After this the work is ended; the worker stays."""
    kind: Literal["await_beside"] = "await_beside"


Command: TypeAlias = (
    MeasureMemory
    | MeasureSpeed
    | MeasureGradients
    | MeasureLink
    | OpenSpeed
    | ContinueSpeed
    | CheckParity
    | TryCheckpointing
    | StartBeside
    | AwaitBeside
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The worker loaded the workload."""

    facts: WorkloadFacts
    process: int
    load_s: float
    level_bytes: int
    """Resident memory after the imports, before model and data."""
    device: str
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotLoad:
    """The workload could not be loaded or trained on: a fault of the input, in words."""

    error: str
    """Name of a class in `autotune.errors`."""
    cause: str
    remedy: str | None
    kind: Literal["cannot_load"] = "cannot_load"

    @classmethod
    def of(cls, error: AutotuneError) -> Self:
        """What an error says."""
        return cls(error=type(error).__name__, cause=error.cause, remedy=error.remedy)

    @property
    def exception(self) -> AutotuneError:
        """The error again."""
        return ERRORS_BY_NAME.get(self.error, AutotuneError)(self.cause, self.remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMeasured:
    """Answer to `MeasureMemory`."""

    memory: MemoryUse
    steps_s: float
    """Wall time of the optimizer steps alone."""
    interlude: Interlude | None = None
    kind: Literal["memory_measured"] = "memory_measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedMeasured:
    """Answer to `MeasureSpeed`, `OpenSpeed` (no steps yet) and `ContinueSpeed`."""

    speed: Speed | None
    phases: Phases | None
    steps_s: float
    """Wall time of all optimizer steps of the command, warm-up and phases included."""
    high_water_bytes: int | None = None
    exchange: Exchange | None = None
    distances: Distances | None = None
    kind: Literal["speed_measured"] = "speed_measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsMeasured:
    """Answer to `MeasureGradients`, the same from every rank."""

    gradients: GradientNorms | None
    """None where a step makes a single micro-gradient."""
    kind: Literal["gradients_measured"] = "gradients_measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasured:
    """Answer to `MeasureLink`; only that of rank 0 says anything."""

    said: tuple[Said, ...]
    """What `probes.collectives.result.link_of` makes a link of."""
    kind: Literal["link_measured"] = "link_measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityFound:
    """Answer to `CheckParity`: relative differences, as the library stands and repaired."""

    losses: tuple[float, float]
    """Loss of the window as one micro-batch, and as several."""
    gradient_norms: tuple[float, float]
    repaired_losses: tuple[float, float] | None
    """The same with `model_accepts_loss_kwargs = False`; None where that changes nothing."""
    repaired_gradient_norms: tuple[float, float] | None
    unused_parameters: tuple[str, ...] = ()
    """Names of trained parameters that get no gradient from a micro-batch of training."""
    kind: Literal["parity_found"] = "parity_found"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointingTried:
    """Answer to `TryCheckpointing`."""

    saved_bytes_without: int
    forms: tuple[CheckpointingForm, ...]
    kind: Literal["checkpointing_tried"] = "checkpointing_tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideStarted:
    """Answer to `StartBeside`."""

    kind: Literal["beside_started"] = "beside_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideEnded:
    """Answer to `AwaitBeside`: the work is done."""

    kind: Literal["beside_ended"] = "beside_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a command stands; may be dropped."""

    stage: str
    step: int | None = None
    num_steps: int | None = None
    samples_per_s: float | None = None
    memory_bytes: int | None = None
    kind: Literal["progress"] = "progress"


Reply: TypeAlias = (
    Ready
    | CannotLoad
    | MemoryMeasured
    | SpeedMeasured
    | GradientsMeasured
    | LinkMeasured
    | ParityFound
    | CheckpointingTried
    | BesideStarted
    | BesideEnded
    | OutOfMemory
    | Failed
)
GroupReply: TypeAlias = Reply | TimedOut | Stopped
"""What several ranks agree on: one of them may have reached its time limit."""
Message: TypeAlias = GroupReply | Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One line on the channel."""

    body: Annotated[Command | Message, Field(discriminator="kind")]
    log: str | None = None
    """For a command: the file that what is printed during it goes to."""
    time_limit_s: float | None = None
    """For a command to several ranks: when each of them ends its measurement."""
    meeting: str | None = None
    """For a command to a rank: the name under which all ranks of it meet."""
    number: int = 0
    """Of a command, counted by the engine; what answers it bears its number."""
    is_last: bool = False
    """For a reply: whether the worker ends after it, since it is no longer clean."""


@cache
def envelope_adapter() -> TypeAdapter[Envelope]:
    """The codec between envelopes and JSON."""
    return TypeAdapter(Envelope)
