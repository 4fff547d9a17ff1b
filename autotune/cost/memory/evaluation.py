"""Memory of evaluation during training, and the evaluation batch size that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from autotune.cost.memory import allocator
from autotune.cost.memory.allocator_settings import AllocatorSettings
from autotune.cost.memory.law import Law, law_of, static_events
from autotune.cost.memory.trace import NO_BYTES, EvaluationTrace, Events, Size, StepTrace

MOST_ROWS = 1024
"""No larger evaluation batch is recommended: long before, it is no faster."""
_NUM_STEPS = 2
"""Evaluation steps of a replay: the second one finds what the first one has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What an evaluation step meets in the allocator of a device."""

    settings: AllocatorSettings
    static: Events
    """Allocations of weights and optimizer state."""
    blocks: tuple[int, ...]
    """Bytes of what libraries keep of the allocator's memory."""
    step: Events

    def reserved_bytes(self, batch_size: int) -> int:
        """Most that the allocator reserves, outputs that are kept left out."""
        keys: list[int] = []
        sizes: list[int] = []
        for key, event in enumerate(self.static):
            keys.append(key)
            sizes.append(event.size.at(batch_size))
        keys += range(len(keys), len(keys) + len(self.blocks))
        sizes += self.blocks
        for _ in range(_NUM_STEPS):
            first = len(keys)
            for event in self.step:
                keys.append(first + event.storage)
                sizes.append(0 if event.is_free else event.size.at(batch_size))
        return allocator.replay(keys, sizes, self.settings).reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationLaw:
    """Allocated bytes at the peak of evaluation, as a function of its batch size.

    Weights and optimizer state are there, gradients are not. Outputs that the job keeps wait on the
    device: those of `accumulation_steps` batches, or of the whole evaluation data. They are joined
    batch by batch, so that while two are joined both and the whole are alive.
    """

    step: Law
    kept: Size
    accumulation_steps: int | None
    num_rows: int | None
    device: Device | None = None
    """None on a CPU, whose allocator keeps nothing back."""

    def held_bytes(self, batch_size: int) -> int:
        """Bytes that the allocator holds at the peak, on a device with gaps and workspaces."""
        if self.device is None:
            return self.peak_bytes(batch_size)
        return self.device.reserved_bytes(batch_size) + self.kept_bytes(batch_size)

    def peak_bytes(self, batch_size: int) -> int:
        """Bytes at the peak with an evaluation batch of this size."""
        return self.step.peak_bytes(batch_size) + self.kept_bytes(batch_size)

    def kept_bytes(self, batch_size: int) -> int:
        """Bytes of kept outputs at their most: the joined ones and what they are joined from."""
        if self.kept == NO_BYTES:
            return 0
        one = self.kept.at(batch_size)
        if self.accumulation_steps is not None:
            num_batches = self.accumulation_steps
        elif self.num_rows is not None:
            num_batches = -(-self.num_rows // batch_size)
        else:
            num_batches = 1
        return one if num_batches == 1 else 2 * one * num_batches

    def largest(self, limit_bytes: int, most: int = MOST_ROWS) -> int:
        """The largest batch size that stays within a limit; 0 where none does."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.held_bytes(middle) <= limit_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def recommended(self, limit_bytes: int, most: int = MOST_ROWS) -> int | None:
        """The `per_device_eval_batch_size` to use: the largest power of two that fits.

        None where not even one row does. No batch is larger than the evaluation data.

        Args:
            limit_bytes: What the allocator may hold.
            most: No larger one is worth it.
        """
        rows = self.num_rows if self.num_rows is not None else MOST_ROWS
        largest = self.largest(limit_bytes, min(most, MOST_ROWS, max(1, rows)))
        return 2 ** (largest.bit_length() - 1) if largest else None


def evaluation_law(
    evaluation: EvaluationTrace,
    trace: StepTrace,
    *,
    settings: AllocatorSettings | None = None,
    blocks: Sequence[int] = (),
) -> EvaluationLaw:
    """The law of evaluation.

    Args:
        evaluation: The traced step.
        trace: Of training, for what is alive between its steps; the checkpointing form does not
            matter.
        settings: Of the device's allocator; None on a CPU.
        blocks: Bytes of what libraries keep of the allocator's memory.
    """
    static = tuple(static_events(trace))
    device = None
    if settings is not None:
        device = Device(
            settings=settings, static=static, blocks=tuple(blocks), step=evaluation.step
        )
    return EvaluationLaw(
        step=law_of(chain(static, evaluation.step)),
        device=device,
        kept=evaluation.kept,
        accumulation_steps=evaluation.accumulation_steps,
        num_rows=evaluation.num_rows,
    )
