"""What one training step allocates and frees, as data: traced once, read by everything else.

A trace is cut into segments that a run of any length is put together from. Sizes are affine in the
micro-batch size, since every storage of a step is either constant or has one entry a sample; they
are bytes as asked for, before any allocator rounds them up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from autotune.configuration import Checkpointing

Phase: TypeAlias = Literal["setup", "forward", "backward", "optimizer", "evaluation"]
"""What the job does while a storage comes or goes; "setup" is before the first step."""
Kind: TypeAlias = Literal["weights", "gradients", "optimizer", "activations", "logits", "temporary"]
"""What a storage is for. Weights include buffers; activations are what a forward pass leaves for
the backward pass, the batch among them; logits are all storages over the model's outputs; what
goes again where it came is temporary."""
PHASES: tuple[Phase, ...] = get_args(Phase)
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Bytes of a storage: a constant part, and a part for each sample of the micro-batch."""

    constant_bytes: float
    bytes_per_sample: float = 0.0
    most_bytes: float | None = None
    """Where it stops to grow, as what a kernel works in does; only of what goes again where it
    came."""

    def at(self, micro_batch_size: int) -> int:
        """Bytes at a micro-batch size, rounded up to whole ones."""
        num_bytes = self.constant_bytes + self.bytes_per_sample * micro_batch_size
        if self.most_bytes is not None:
            num_bytes = min(num_bytes, self.most_bytes)
        return max(0, math.ceil(num_bytes))


NO_BYTES = Size(constant_bytes=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A storage comes into being, or goes."""

    storage: int
    """Number of the storage, unique in its trace; an event that frees bears that of the one that
    allocated."""
    is_free: bool
    size: Size
    """As allocated, also where it is freed."""
    phase: Phase
    """Where this event happens."""
    kind: Kind
    module: str
    """Path of the module whose forward pass, or the backward pass of it, this happens in; empty
    for the whole model and outside of it."""
    operator: str
    """torch's name of the operator that allocated, such as `aten.addmm`; empty where none did."""


Events: TypeAlias = tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """The segments of training under one checkpointing form.

    A run is `setup`, a first optimizer step, and any number of later ones. A step of k
    micro-batches is `window` k times, `first_micro_step`, `later_micro_step` k − 1 times, and
    `first_update` in the first step or `update` in all others; `replay` puts them together. Frees
    may refer to storages of earlier segments: gradients come in `first_micro_step` and go in
    `update`.
    """

    checkpointing: Checkpointing
    setup: Events
    """Weights and buffers, and what the first pass makes for good."""
    window: Events
    """Tensors of one micro-batch. All micro-batches of a step are fetched before the first one is
    trained on, and wait where they are trained on until the step is over."""
    first_micro_step: Events
    """Forward and backward of the first micro-batch of a step: gradients come into being."""
    later_micro_step: Events
    """Forward and backward of any later one: gradients are there and are added to."""
    first_update: Events
    """Clipping and the optimizer's first step, which makes its state."""
    update: Events
    """Clipping and any later step of the optimizer."""
    one_row: Events | None = None
    """In the place of `first_micro_step` for micro-batches of a single row, where those do
    something else; sizes are constant."""
    later_one_row: Events | None = None
    """Likewise, in the place of `later_micro_step`."""

    def micro_steps(self, micro_batch_size: int) -> tuple[Events, Events]:
        """The first micro-step and any later one at a micro-batch size."""
        if micro_batch_size == 1 and self.one_row is not None and self.later_one_row is not None:
            return self.one_row, self.later_one_row
        return self.first_micro_step, self.later_micro_step


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTrace:
    """One evaluation step, with weights and optimizer state there and no gradients."""

    step: Events
    """Everything but what is kept of the step's outputs. Sizes are per sample of the evaluation
    batch."""
    kept: Size
    """Outputs of one step that wait on the device until they are moved to the host: logits and
    labels as the job's arguments keep them. Zero where only the loss is kept."""
    accumulation_steps: int | None
    """Steps after which kept outputs are moved to the host; None waits for the last one."""
    num_rows: int | None
    """Rows of the evaluation data, where they are known."""
    micro_batch_size: int
    """`per_device_eval_batch_size` as the job has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Untraced:
    """What could not be traced, and why."""

    what: str
    """A checkpointing form in words, or "evaluation"."""
    checkpointing: Checkpointing | None
    """None for evaluation."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """What was traced, and on what assumptions."""

    name: str
    """Of the workload."""
    model_class: str
    num_parameters: int
    num_trainable_parameters: int
    sequence_length: int | None
    """Tokens of a row of the traced batch, padding included; None where rows have no tokens."""
    is_padded: bool
    """Whether the attention mask is taken to hide padding."""
    batch: Size
    """The tensors of one micro-batch, as collated."""
    precision: str
    """Of the computation: fp32, bf16 or fp16."""
    optimizer: str
    """Name of the optimizer, and how it steps: fused, foreach or tensor by tensor."""
    attention: tuple[str, ...]
    """Attention kernels that the target device is taken to choose; empty where there are none."""
    target: str
    """torch's name of the kind of device that the trace stands for: cpu, cuda …"""
    traced_sizes: tuple[int, int]
    """Micro-batch sizes that were traced."""
    seconds: float
    """What tracing took."""
    notes: tuple[str, ...] = ()
    """What was substituted or left out, in whole sentences."""
    versions: tuple[tuple[str, str], ...] = ()
    weights: str = "float32"
    """Number format of the weights, by torch's name; that of most of them first, where they have
    several."""
    weights_from: str = ""
    """Why, as the end of a sentence; empty where nobody had to choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWorkload:
    """Everything that is known of a workload's memory without running it."""

    facts: TraceFacts
    steps: tuple[StepTrace, ...]
    """One a checkpointing form that could be traced."""
    evaluation: EvaluationTrace | None = None
    untraced: tuple[Untraced, ...] = ()

    def of(self, checkpointing: Checkpointing) -> StepTrace | None:
        """The trace under a form; None where it could not be traced."""
        return next((s for s in self.steps if s.checkpointing == checkpointing), None)


Happening: TypeAlias = tuple[int, bool, Event]
"""Number of a storage in a whole run, whether it goes, and the event that this repeats."""


def replay(
    trace: StepTrace, *, micro_batch_size: int, accumulation_steps: int, num_steps: int
) -> Iterator[Happening]:
    """All that happens in a training run, in order, with numbers of storages that never repeat.

    Args:
        trace: The segments.
        micro_batch_size: Only a single row does something else than more; sizes stay affine.
        accumulation_steps: Micro-batches of a step.
        num_steps: Optimizer steps.
    """
    names = _Names()
    first, later = trace.micro_steps(micro_batch_size)
    yield from names.renamed(trace.setup)
    for step in range(num_steps):
        window = [names.fresh(event) for _ in range(accumulation_steps) for event in trace.window]
        yield from window
        yield from names.renamed(first)
        for _ in range(accumulation_steps - 1):
            yield from names.renamed(later)
        yield from names.renamed(trace.first_update if step == 0 else trace.update)
        for number, _, event in window:
            yield number, True, event


class _Names:
    """Numbers storages anew, so that a segment may be repeated."""

    def __init__(self) -> None:
        self._next = 0
        self._alive: dict[int, int] = {}
        """New numbers of storages that may still be freed, by those that the trace has for them."""

    def fresh(self, event: Event) -> Happening:
        """An allocation that no segment frees."""
        self._next += 1
        return self._next - 1, False, event

    def renamed(self, events: Iterable[Event]) -> Iterator[Happening]:
        alive = self._alive
        for event in events:
            number = alive.pop(event.storage, None)
            if number is not None:
                # It goes, or a segment that is repeated replaces what it had left to a later one.
                yield number, True, event
            if not event.is_free:
                alive[event.storage] = self._next
                yield self.fresh(event)
