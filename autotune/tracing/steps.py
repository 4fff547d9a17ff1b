"""Drives a stepper through whole optimizer steps on fake tensors, and makes a trace of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autotune.configuration import Checkpointing
from autotune.cost.memory.trace import Kind, StepTrace
from autotune.tracing import pairing, substitutes
from autotune.tracing.attention import Attention
from autotune.tracing.batches import Batches
from autotune.tracing.fakes import fake_batch, tensors_of
from autotune.tracing.pairing import SIZES, Labels, Mismatch, Pair
from autotune.tracing.places import Places
from autotune.tracing.recorder import Note, Recorder
from autotune.tracing.request import Target
from autotune.trial.stepper import Stepper
from autotune.workload.loaded import Batch

_CPU_KERNELS = {
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_safe_softmax": "math",
}
"""Part of an operator's name → the attention kernel that it is of."""
NUM_MICRO_BATCHES = 2
"""Micro-batches of a traced step: one that makes gradients, and one that adds to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The notes of one optimizer step."""

    window: list[Note]
    """Of one micro-batch that waits; empty on a device."""
    micro_steps: tuple[list[Note], ...]
    update: list[Note]
    first_storage: int
    """Number of the first storage that is this step's own."""
    gradients: frozenset[int]
    left: frozenset[int]
    """Storages alive after it."""

    @property
    def body(self) -> Iterator[Note]:
        return chain(*self.micro_steps, self.update)


class StepTracer:
    """Records the steps of one stepper.

    Args:
        stepper: On fake weights, bound to two micro-batches a step.
        batches: Where batches come from.
        mode: Of the fake weights.
        target: The device that the trace stands for.
    """

    def __init__(
        self, stepper: Stepper, batches: Batches, mode: FakeTensorMode, target: Target
    ) -> None:
        self.stepper = stepper
        self.attention: Attention | None = None
        self._batches = batches
        self._mode = mode
        self._target = target
        self.on_device = target.kind != "cpu"
        self.places = Places(stepper.workload.model)
        self.recorder = Recorder(mode, self.places)
        self.output_width: int | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Everything that runs in the block is recorded."""
        gc.collect()
        gc.disable()
        hook = self.stepper.workload.model.register_forward_hook(self._look_at_output)
        try:
            with ExitStack() as stack:
                stack.enter_context(substitutes.as_real())
                stack.enter_context(self._mode)
                stack.enter_context(self.places.followed())
                stack.enter_context(self.recorder)
                self.attention = stack.enter_context(
                    substitutes.as_on(self._target, self.recorder)
                )
                yield
        finally:
            hook.remove()
            gc.enable()

    def _look_at_output(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        logits = output.get("logits") if isinstance(output, dict) else None
        if isinstance(logits, torch.Tensor) and logits.ndim:
            self.output_width = logits.shape[-1]

    @property
    def kernels(self) -> frozenset[str]:
        """Attention kernels that ran."""
        if self.attention is not None:
            return frozenset(self.attention.used)
        operators = {note.operator for note in self.recorder.notes}
        return frozenset(
            name for part, name in _CPU_KERNELS.items() if any(part in o for o in operators)
        )

    def optimizer_name(self, name: str) -> str:
        """The optimizer, and how it steps."""
        group = self.stepper.optimizer.param_groups[0]
        if group.get("fused"):
            return f"{name}, fused"
        if group.get("foreach") or (
            "foreach" in group and group["foreach"] is None and self.on_device
        ):
            return f"{name}, all tensors at once"
        return f"{name}, tensor by tensor"

    def batch(self, size: int) -> Batch:
        """A fake batch of so many rows."""
        real = self._batches.of(self.stepper, size)
        return fake_batch(real, self._mode, on_host=self.on_device)

    def trace(self, checkpointing: Checkpointing) -> StepTrace:
        """The segments of training.

        Raises:
            Mismatch: The step is not the same at both sizes.
        """
        low, high = SIZES
        self._batches.look_at(self.stepper)
        self.recorder.watch(tensors_of(self.stepper.workload.model))
        num_setup = self.recorder.num_notes
        with self.recording():
            first = self._step(low)
            steps = [first, self._step(high)]
            try:
                return self._paired(num_setup, first, steps[0], steps[1], checkpointing)
            except Mismatch:
                # What a model makes once, in its first pass, is there in the next.
                steps.append(self._step(low))
        return self._paired(num_setup, first, steps[2], steps[1], checkpointing)

    def _step(self, size: int) -> _Step:
        """One optimizer step with micro-batches of a size."""
        recorder, stepper = self.recorder, self.stepper
        recorder.phase = "forward"
        first_storage = recorder.num_storages
        window = [self.batch(size) for _ in range(NUM_MICRO_BATCHES)]
        marks = [recorder.num_notes]
        if not self.on_device:
            for batch in window:
                recorder.watch(value for value in batch.values() if torch.is_tensor(value))
                marks.append(recorder.num_notes)
        waiting = recorder.notes[marks[0] : marks[1]] if not self.on_device else []
        marks = [recorder.num_notes]
        stepper.set_window(window)
        total: torch.Tensor | None = None
        for index in range(NUM_MICRO_BATCHES):
            loss = stepper.micro_step(
                window[index], is_last=index == NUM_MICRO_BATCHES - 1
            )
            total = loss if total is None else total + loss
            marks.append(recorder.num_notes)
        del loss, total
        gradients = frozenset(
            number
            for parameter in stepper.model.parameters()
            if parameter.grad is not None
            and (number := recorder.number(parameter.grad)) is not None
        )
        recorder.phase = "optimizer"
        stepper.optimizer_step()
        marks.append(recorder.num_notes)
        self.places.forget()
        del window
        gc.collect()
        notes = recorder.notes
        return _Step(
            window=waiting,
            micro_steps=tuple(
                notes[marks[i] : marks[i + 1]] for i in range(NUM_MICRO_BATCHES)
            ),
            update=notes[marks[-2] : marks[-1]],
            first_storage=first_storage,
            gradients=gradients,
            left=recorder.alive(),
        )

    def _paired(
        self,
        num_setup: int,
        first: _Step,
        low: _Step,
        high: _Step,
        checkpointing: Checkpointing,
    ) -> StepTrace:
        """Joins the steps at both sizes; state and what is kept for good come from the first."""
        kept = first.left & high.left
        for_good = [n for n in chain(*first.micro_steps) if not n.is_free and n.storage in kept]
        state = [n for n in first.update if not n.is_free and n.storage in kept]
        kinds: dict[int, Kind] = dict.fromkeys(low.gradients | high.gradients, "gradients")
        pair = Pair(Labels(kinds=kinds, output_width=self.output_width))
        setup = pair.setup([*self.recorder.notes[:num_setup], *for_good])
        window = pair.both(low.window, high.window)
        micro_steps = [
            pair.both(own, other)
            for own, other in zip(_own(low), _own(high), strict=True)
        ]
        update = pair.second_only(self._closed(high))
        made = pair.new(state, "optimizer")
        return StepTrace(
            checkpointing=checkpointing,
            setup=setup,
            window=window,
            first_micro_step=micro_steps[0],
            later_micro_step=micro_steps[1],
            first_update=(*made, *update),
            update=update,
        )

    def _closed(self, step: _Step) -> list[Note]:
        """The update, and the end of everything that the step has left behind."""
        own = {note.storage for note in step.body if not note.is_free}
        update = [n for n in step.update if not n.is_free or n.storage in own]
        return [*update, *pairing.closing(step.body, step.left, "optimizer")]


def _own(step: _Step) -> list[list[Note]]:
    """The micro-steps without the ends of what earlier steps left behind."""
    own = {note.storage for note in step.body if not note.is_free}
    return [[n for n in notes if not n.is_free or n.storage in own] for notes in step.micro_steps]

