"""Drives a stepper through whole optimizer steps on fake tensors, and makes a trace of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from autotune.configuration import Checkpointing
from autotune.cost.memory.trace import Kind, StepTrace
from autotune.tracing import substitutes
from autotune.tracing.attention import Attention
from autotune.tracing.batches import Batches
from autotune.tracing.depth import Fold
from autotune.tracing.fakes import fake_batch, tensors_of
from autotune.tracing.layers import Layers
from autotune.tracing.memo import Memo
from autotune.tracing.pairing import SIZES, Labels, Mismatch, Pair, closing
from autotune.tracing.places import Places
from autotune.tracing.recorder import Note, Recorder
from autotune.tracing.request import Target
from autotune.tracing.unfolding import Unfolded, settled
from autotune.trial.stepper import Stepper
from autotune.workload.loaded import Batch

_CPU_KERNELS = {
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_safe_softmax": "math",
}
"""Part of an operator's name → the attention kernel that it is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """One optimizer step of a single micro-batch, as places among everything that was recorded."""

    marks: tuple[int, int, int, int]
    """Where the micro-batch, the micro-step and the update begin, and where the step ends."""
    gradients: Mapping[int, int]
    """Storages of the gradients, by the place of their parameter."""
    accumulated: Mapping[int, int]
    """By the place of a parameter, after how many notes its gradient was put in place."""
    left: frozenset[int]
    """Storages alive after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The notes of one optimizer step of a single micro-batch."""

    window: list[Note]
    """Of the micro-batch as it waits."""
    micro_step: list[Note]
    update: list[Note]
    gradients: Mapping[int, int]
    """Storages of the gradients, by the place of their parameter."""
    accumulated: Mapping[int, int]
    """By the place of a parameter, how many notes of the micro-step came before its gradient was
    put in place."""
    left: frozenset[int]
    """Storages alive after it."""

    @property
    def body(self) -> list[Note]:
        return [*self.micro_step, *self.update]

    def own(self, notes: list[Note]) -> list[Note]:
        """Of notes, those about what this step made: not the ends of what an earlier one left."""
        made = {note.storage for note in self.body if not note.is_free}
        return [note for note in notes if not note.is_free or note.storage in made]

    @property
    def put_in_place(self) -> Mapping[int, int]:
        """By the storage of a gradient, after how many of its own notes it was put in place."""
        made = {note.storage for note in self.body if not note.is_free}
        counts = [0]
        for note in self.micro_step:
            counts.append(counts[-1] + (not note.is_free or note.storage in made))
        return {
            number: counts[self.accumulated[place]]
            for place, number in self.gradients.items()
            if place in self.accumulated
        }


class StepTracer:
    """Records the steps of one stepper.

    Args:
        stepper: On fake weights, bound to one micro-batch a step.
        batches: Where batches come from.
        mode: Of the fake weights.
        memo: Shared by all tracers of the mode.
        target: The device that the trace stands for.
        fold: How the stack of the model was cut short; None where it was not.
    """

    def __init__(
        self,
        stepper: Stepper,
        batches: Batches,
        mode: FakeTensorMode,
        memo: Memo,
        target: Target,
        fold: Fold | None = None,
    ) -> None:
        self.stepper = stepper
        self.attention: Attention | None = None
        self._batches = batches
        self._mode = mode
        self._target = target
        self.on_device = target.kind != "cpu"
        self.places = Places(stepper.workload.model)
        self._fold = fold
        self._layers = Layers(stepper.workload.model, fold)
        self.recorder = Recorder(mode, self.places, memo, self._layers)
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
                self.recorder.calibrate()
                self.attention = stack.enter_context(
                    substitutes.as_on(
                        self._target,
                        self.recorder,
                        is_fp16=self.stepper.workload.facts.precision == "fp16",
                    )
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
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            real = self._batches.of(self.stepper, size)
            return fake_batch(real, self._mode)

    def trace(self, checkpointing: Checkpointing) -> StepTrace:
        """The segments of training.

        Raises:
            Mismatch: The step is not the same at both sizes.
            Irregular: Layers that should do the same do not.
        """
        low, high = SIZES
        self._batches.look_at(self.stepper)
        with self.recording():
            self.recorder.watch(tensors_of(self.stepper.workload.model))
            self.recorder.watch_state(self.stepper.optimizer)
            recorded = [self._step(size) for size in (low, high, 1)]
            try:
                setup, (first, large, one) = self._whole(recorded)
                return self._paired(setup, first, first, large, one, checkpointing)
            except Mismatch:
                # What a model makes once, in its first pass, is there in the next.
                recorded.append(self._step(low))
        setup, (first, large, one, small) = self._whole(recorded)
        return self._paired(setup, first, small, large, one, checkpointing)

    def _whole(self, recorded: Sequence[_Recorded]) -> tuple[list[Note], list[_Step]]:
        """What was there before, and the steps of the whole model.

        Raises:
            Irregular: Layers that should do the same do not.
        """
        notes = settled(self.recorder.notes, _breaks(recorded))
        if self._fold is None:
            return notes[: recorded[0].marks[0]], [_as_step(step, notes) for step in recorded]
        layers = [
            self._layers.of_weight(parameter, -1) for parameter in self.stepper.model.parameters()
        ]
        marks = [mark for step in recorded for mark in step.marks]
        whole = Unfolded(notes, marks, self.recorder.joined, self._fold)
        unfolded = [_unfolded(step, whole, layers) for step in recorded]
        notes = settled(whole.notes, _breaks(unfolded))
        return notes[: unfolded[0].marks[0]], [_as_step(step, notes) for step in unfolded]

    def _step(self, size: int) -> _Recorded:
        """One optimizer step with a micro-batch of a size."""
        recorder, stepper = self.recorder, self.stepper
        recorder.phase = "forward"
        recorder.begin_step()
        marks = [recorder.num_notes]
        batch = self.batch(size)
        # The loader of Accelerate puts each micro-batch where it is trained on as it fetches it.
        recorder.watch(value for value in batch.values() if torch.is_tensor(value))
        marks.append(recorder.num_notes)
        window = [batch]
        stepper.set_window(window)
        with self._accumulations() as accumulated:
            loss = stepper.micro_step(batch, is_last=True)
        marks.append(recorder.num_notes)
        gradients = {
            place: number
            for place, parameter in enumerate(stepper.model.parameters())
            if parameter.grad is not None
            and (number := recorder.number(parameter.grad)) is not None
        }
        recorder.phase = "optimizer"
        stepper.optimizer_step()
        marks.append(recorder.num_notes)
        self.places.forget()
        del window, batch, loss
        gc.collect()
        begin, forward, update, end = marks
        return _Recorded(
            marks=(begin, forward, update, end),
            gradients=gradients,
            accumulated=accumulated,
            left=recorder.alive(),
        )

    @contextmanager
    def _accumulations(self) -> Iterator[Mapping[int, int]]:
        """At which note the gradient of each parameter was put in place."""
        found: dict[int, int] = {}
        handles = []

        def note(place: int, parameter: torch.Tensor) -> None:
            found.setdefault(place, self.recorder.num_notes)

        for place, parameter in enumerate(self.stepper.model.parameters()):
            if parameter.requires_grad:
                hook = partial(note, place)
                handles.append(parameter.register_post_accumulate_grad_hook(hook))
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()

    def _paired(
        self,
        before: list[Note],
        first: _Step,
        small: _Step,
        large: _Step,
        one: _Step,
        checkpointing: Checkpointing,
    ) -> StepTrace:
        """Joins the steps at both sizes; state and what is kept for good come from the first."""
        for_good = [
            n
            for n in first.micro_step
            if not n.is_free and n.storage in first.left and n.storage in one.left
        ]
        state = [n for n in first.update if not n.is_free and n.storage in first.left]
        kinds: dict[int, Kind] = {
            number: "gradients"
            for step in (small, large, one)
            for number in step.gradients.values()
        }
        pair = Pair(Labels(kinds=kinds, output_width=self.output_width))
        setup = pair.setup([*before, *for_good])
        # Nothing in the window itself shows that the backward pass still needs it.
        window = tuple(
            replace(event, kind="activations") for event in pair.both(small.window, large.window)
        )
        micro_step = pair.both(small.own(small.micro_step), large.own(large.micro_step))
        update = pair.second_only(
            [*large.own(large.update), *closing(large.body, large.left, "optimizer")]
        )
        twins = {
            number: small.gradients[place]
            for place, number in one.gradients.items()
            if place in small.gradients
        }
        single = pair.alone(one.own(one.micro_step), micro_step, twins)
        made = pair.new(state, "optimizer")
        return StepTrace(
            checkpointing=checkpointing,
            setup=setup,
            window=window,
            first_micro_step=micro_step,
            later_micro_step=pair.repeated(micro_step, pair.numbered(small.put_in_place)),
            one_row=single,
            later_one_row=pair.repeated(
                single, pair.numbered({twins[n]: at for n, at in one.put_in_place.items()})
            )
            if single is not None
            else None,
            first_update=(*made, *update),
            update=update,
        )


def _breaks(recorded: Sequence[_Recorded]) -> Iterator[int]:
    """Places of notes that something begins at, or is put in place."""
    for step in recorded:
        yield from step.marks
        yield from step.accumulated.values()


def _as_step(recorded: _Recorded, notes: list[Note]) -> _Step:
    window, micro_step, update = (notes[start:end] for start, end in pairwise(recorded.marks))
    begin = recorded.marks[1]
    return _Step(
        window=window,
        micro_step=micro_step,
        update=update,
        gradients=recorded.gradients,
        accumulated={place: at - begin for place, at in recorded.accumulated.items()},
        left=recorded.left,
    )


def _unfolded(recorded: _Recorded, whole: Unfolded, layers: Sequence[int]) -> _Recorded:
    """The step of the whole stack; parameters of layers that were taken out get places as well.

    Args:
        recorded: With the stack cut short.
        whole: The notes of the whole stack.
        layers: Of the parameters, by their places.
    """
    begin, forward, update, end = (whole.mark(mark) for mark in recorded.marks)

    def of_all(place: int) -> Iterator[tuple[int, int]]:
        """The places of a parameter and of its copies, with the number of each copy."""
        for copy in range(whole.num_of(layers[place])):
            yield place + copy * len(layers), copy

    return _Recorded(
        marks=(begin, forward, update, end),
        gradients={
            one: whole.storage_of(storage, layers[place], copy)
            for place, storage in recorded.gradients.items()
            for one, copy in of_all(place)
        },
        accumulated={
            one: whole.place_of(at, layers[place], copy)
            for place, at in recorded.accumulated.items()
            for one, copy in of_all(place)
        },
        left=frozenset(number for storage in recorded.left for number in whole.storages(storage)),
    )
