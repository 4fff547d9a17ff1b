"""One evaluation step on fake tensors, with what the job keeps of its outputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils._pytree import tree_leaves

from autotune.cost.memory.trace import NO_BYTES, EvaluationTrace, Size
from autotune.tracing.fakes import tensors_of
from autotune.tracing.pairing import SIZES, Labels, Pair, closing
from autotune.tracing.recorder import Note
from autotune.tracing.steps import StepTracer
from autotune.trial.stepper import TrainerStepper
from autotune.workload.loaded import Batch


def trace_evaluation(tracer: StepTracer) -> EvaluationTrace:
    """The evaluation step of the tracer's stepper.

    Raises:
        Mismatch: The step is not the same at both sizes.
    """
    evaluation = tracer.stepper.workload.evaluation
    recorder = tracer.recorder
    with tracer.recording():
        recorder.watch(tensors_of(tracer.stepper.workload.model))
        setup = list(recorder.notes)
        # What a model makes once, in its first pass, is there in the next.
        _step(tracer, SIZES[0])
        low, kept_low = _step(tracer, SIZES[0])
        high, kept_high = _step(tracer, SIZES[1])
    pair = Pair(Labels(kinds={}, output_width=tracer.output_width))
    pair.setup(setup)
    step = pair.both(low, high)
    kept = NO_BYTES
    if evaluation.keeps_outputs or evaluation.keeps_inputs:
        per_sample = (kept_high - kept_low) / (SIZES[1] - SIZES[0])
        kept = Size(constant_bytes=kept_low - per_sample * SIZES[0], bytes_per_sample=per_sample)
    return EvaluationTrace(
        step=step,
        kept=kept,
        accumulation_steps=evaluation.accumulation_steps,
        num_rows=evaluation.num_rows,
        micro_batch_size=evaluation.micro_batch_size,
    )


def _step(tracer: StepTracer, size: int) -> tuple[list[Note], int]:
    """The notes of one step, ended by the end of everything it made, and bytes of its outputs."""
    recorder = tracer.recorder
    recorder.phase = "evaluation"
    start = recorder.num_notes
    batch = tracer.batch(size)
    recorder.watch(value for value in batch.values() if isinstance(value, torch.Tensor))
    outputs = _outputs(tracer, batch)
    num_bytes = sum(t.untyped_storage().nbytes() for t in _distinct(outputs))
    alive = recorder.alive()
    notes = recorder.notes[start:]
    del batch, outputs
    own = {note.storage for note in notes if not note.is_free}
    notes = [note for note in notes if not note.is_free or note.storage in own]
    return [*notes, *closing(notes, alive, "evaluation")], num_bytes


def _outputs(tracer: StepTracer, batch: Batch) -> object:
    """What the loop of evaluation gets of a batch, and may keep."""
    stepper = tracer.stepper
    evaluation = stepper.workload.evaluation
    stepper.workload.model.eval()
    if not isinstance(stepper, TrainerStepper):
        with torch.no_grad():
            stepper.loss(batch)
        return None
    _, logits, labels = stepper.trainer.prediction_step(
        stepper.model, batch, prediction_loss_only=not evaluation.keeps_outputs
    )
    if logits is not None and evaluation.preprocess_logits is not None:
        logits = evaluation.preprocess_logits(logits, labels)
    main = getattr(stepper.trainer.model, "main_input_name", "input_ids")
    return logits, labels, batch.get(main) if evaluation.keeps_inputs else None


def _distinct(outputs: object) -> Iterator[torch.Tensor]:
    seen: set[int] = set()
    for leaf in tree_leaves(outputs):
        if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in seen:
            seen.add(leaf.untyped_storage()._cdata)
            yield leaf
