"""The public document of an estimate, and what is to be said of it in words."""

from __future__ import annotations

from dataclasses import asdict

from autotune.cost.memory.estimate import Estimate, FormEstimate
from autotune.errors import NothingFeasible
from autotune.events import Document
from autotune.goal import limit_to_fill
from autotune.units import format_bytes, format_bytes_at_least

SCHEMA = 1


def document(answer: Estimate, *, task: str, is_made_up: bool) -> Document:
    """The public JSON form of an estimate; where nothing fits, its `error` says what is missing.

    Args:
        answer: What was reckoned.
        task: What the model learns.
        is_made_up: Whether the traced samples come from no data.
    """
    question, facts = answer.question, answer.traced.facts
    target = question.target
    workload: Document = {
        "name": facts.name,
        "task": task,
        "model_class": facts.model_class,
        "num_parameters": facts.num_parameters,
        "num_trainable_parameters": facts.num_trainable_parameters,
        "precision": facts.precision,
        "weights_dtype": facts.weights,
        "optimizer": facts.optimizer,
        "attention": list(facts.attention),
        "sequence_length": facts.sequence_length,
        "is_padded": facts.is_padded,
        "samples": "made up" if is_made_up else "the longest",
        "traced_micro_batch_sizes": list(facts.traced_sizes),
        "versions": dict(facts.versions),
    }
    device: Document = {
        "name": target.name,
        "kind": target.kind,
        "architecture": target.architecture,
        "total_bytes": target.total_bytes,
        "total_from": target.total_from,
        "usable_bytes": question.usable_bytes,
        "processes": question.ranks.world_size,
    }
    error = _nothing_fits(answer)
    return {
        "schema": SCHEMA,
        "workload": workload,
        "device": device,
        "allocator": {
            "expandable_segments": question.settings.expandable_segments,
            "is_default": question.settings.is_default,
        },
        "global_batch_size": question.global_batch_size,
        "forms": [_form(form) for form in answer.forms],
        "untraced": [
            {"what": one.what, "reason": one.reason}
            for one in answer.traced.untraced
            if one.checkpointing is not None
        ],
        "notes": [*facts.notes, *_notes(answer)],
        "error": None if error is None else {"cause": error.cause, "remedy": error.remedy},
    }


def _form(form: FormEstimate) -> Document:
    return {
        "checkpointing": dict(asdict(form.checkpointing)),
        "largest_micro_batch_size": form.largest or None,
        "largest_with_expandable_segments": form.largest_with_expandable_segments,
        "at": {
            "micro_batch_size": form.shown_size,
            "total_bytes": form.total_bytes,
            "layers": [dict(layer.to_json()) for layer in form.layers],  # type: ignore[arg-type]
            "by_kind": {str(kind): num for kind, num in form.peak.by_kind.items()},
            "peak": {
                "phase": form.peak.phase,
                "module": form.peak.module,
                "operator": form.peak.operator,
            },
        },
        "entries": [dict(asdict(entry)) for entry in form.entries],
    }


def _nothing_fits(answer: Estimate) -> NothingFeasible | None:
    """What is missing, where not even one sample fits under any form."""
    if answer.best is not None:
        return None
    form = answer.leanest
    question = answer.question
    usable, target = question.usable_bytes, question.target
    weights = form.peak.by_kind.get("weights", 0)
    place = f"{target.name} has {format_bytes(usable)} to fill"
    if weights > usable:
        cause = f"The weights alone take {format_bytes(weights)}, and {place}"
    else:
        cause = (
            f"One sample with {form.checkpointing} takes {format_bytes(form.total_bytes)}, and "
            f"{place}"
        )
    missing = form.total_bytes - usable
    enough_bytes = limit_to_fill(form.total_bytes, on_device=not target.is_cpu)
    return NothingFeasible(
        f"{cause}: {format_bytes(missing)} are missing.",
        f"Take a device with {format_bytes_at_least(enough_bytes)} or more"
        + _lighter(answer)
        + ".",
    )


def _lighter(answer: Estimate) -> str:
    """What would make the job lighter, in the middle of a sentence."""
    facts, peak = answer.traced.facts, answer.leanest.peak
    state = peak.by_kind.get("optimizer", 0) + peak.by_kind.get("gradients", 0)
    ideas = []
    if facts.num_trainable_parameters == facts.num_parameters:
        if state > peak.num_bytes / 3:
            ideas.append("train adapters with --lora-rank")
    elif facts.weights == "float32" and peak.by_kind.get("weights", 0) > peak.num_bytes / 3:
        ideas.append("hold the frozen weights in half of the bytes with --dtype bfloat16")
    if facts.sequence_length is not None and facts.sequence_length > 128:
        ideas.append("cut samples shorter with --max-length")
    return f", or {' or '.join(ideas)}" if ideas else ""


def _notes(answer: Estimate) -> list[str]:
    """What a reader must know to use the numbers."""
    question, facts = answer.question, answer.traced.facts
    target, notes = question.target, []
    if question.global_batch_size is None:
        notes.append(
            "Accumulation is left open, with two micro-batches a step: further ones add nothing "
            f"but their samples, {format_bytes(facts.batch.at(1))} each, which wait. With "
            "--global-batch-size each micro-batch size has its own."
        )
    notes.append(_of_weights(answer))
    if not facts.weights.startswith("float32"):
        notes.append("tune holds weights in float32: --dtype float32 estimates that.")
    if facts.precision == "fp16" and facts.weights.startswith("float16"):
        notes.append(
            "torch refuses to scale back gradients of float16 weights: train with --precision "
            "bf16, or hold the weights in float32 with --dtype."
        )
    capability = target.capability
    if facts.precision == "bf16" and capability is not None and capability < (8, 0):
        notes.append(f"{target.name} has no bf16 arithmetic: it computes by detours, slowly.")
    if not target.is_cpu and not question.settings.is_native:
        notes.append(
            "backend:cudaMallocAsync follows rules of its own; the numbers are those of torch's "
            "allocator."
        )
    notes.append("Evaluation and saving are not counted: tune tries both.")
    notes += _of_no_use(answer)
    for form in answer.forms:
        grown = form.largest_with_expandable_segments
        if grown is not None and grown > form.largest:
            notes.append(
                f"With {form.checkpointing}, PYTORCH_ALLOC_CONF=expandable_segments:True makes "
                f"micro-batch size {grown} fit."
            )
    return notes


def _of_weights(answer: Estimate) -> str:
    """In which number format weights are held, and why."""
    facts = answer.traced.facts
    most, _, rest = facts.weights.partition(" and ")
    why = f", {facts.weights_from}" if facts.weights_from else ""
    is_adapted = facts.num_trainable_parameters < facts.num_parameters
    beside = f", {'adapters' if is_adapted else 'some'} in {rest}" if rest else ""
    computed = (
        f"the computation is in {facts.precision}"
        if facts.precision != "fp32" or most == "float32"
        else "without --precision, the computation is in it too"
    )
    return f"Weights are held in {most}{why}{beside}; {computed}."


def _of_no_use(answer: Estimate) -> list[str]:
    """Checkpointing forms that cost time and make no more fit."""
    plain = next((form for form in answer.forms if not form.checkpointing.is_on), None)
    if plain is None or all(entry.fits for entry in plain.entries):
        return []
    others = [form for form in answer.forms if form.checkpointing.is_on]
    useless = [form for form in others if 0 < form.largest <= plain.largest]
    if useless and useless == others:
        return [f"Checkpointing makes no more fit{_held_by_logits(useless[-1])}."]
    return [
        f"{str(form.checkpointing).capitalize()} makes no more fit{_held_by_logits(form)}."
        for form in useless
    ]


def _held_by_logits(form: FormEstimate) -> str:
    logits = form.peak.by_kind.get("logits", 0)
    if logits <= form.peak.num_bytes / 3:
        return ""
    return f": logits take {format_bytes(logits)} of the peak"
