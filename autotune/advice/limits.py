"""What the evidence for an answer does not cover, and levers that were not tried."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.configuration import Configuration
from autotune.outcome import MemoryUse
from autotune.search.evidence.history import History
from autotune.units import counted, format_bytes
from autotune.view import RunView
from autotune.workload.facts import WorkloadFacts

_LONG_TAIL = 2.0
"""Longest sample over the median one from which grouping by length is worth naming."""


def also_consider(
    view: RunView, facts: WorkloadFacts, configuration: Configuration
) -> Iterator[str]:
    """Levers outside the knobs; none of them was tried."""
    devices = view.machine.machine.get("devices") if view.machine else None
    first = devices[0] if isinstance(devices, list) and devices else {}
    on_device = isinstance(first, dict) and first.get("kind") != "cpu"
    if facts.precision == "fp32" and on_device:
        yield "untested: bf16 mixed precision (--precision bf16), if the loss allows it"
    if (
        facts.tokens_median
        and facts.tokens_max
        and (facts.tokens_max >= _LONG_TAIL * facts.tokens_median)
    ):
        yield (
            f"untested: grouping samples of similar length (the longest has {facts.tokens_max} "
            f"tokens, the median {facts.tokens_median}); it changes the order of the rows"
        )
    if facts.task in ("causal-lm", "masked-lm"):
        yield "untested: packing texts into full blocks (--packing), if samples are short"
    yield "untested: torch.compile (torch_compile=True), worth its warm-up on long runs"
    exchanges = configuration.world_size > 1 and configuration.local_sgd_steps == 1
    parity = view.parity
    if exchanges and parity and parity.loss_difference is not None and not parity.unused_parameters:
        yield (
            "untested: ddp_find_unused_parameters=False, since every parameter got a gradient in "
            "the check; a Trainer has its ranks look for others in every step"
        )
    if on_device:
        yield "untested: data loader workers, if the device waits for data"


def not_covered(
    view: RunView,
    history: History,
    facts: WorkloadFacts,
    configuration: Configuration,
    *,
    alone: bool,
) -> Iterator[str]:
    """What nobody looked at.

    Args:
        view: The run.
        history: The trials with the space they come from.
        facts: Of the workload.
        configuration: The answer.
        alone: Whether one rank stood for all of them.
    """
    yield from _beside_training(view)
    rows, batch = facts.num_rows, configuration.global_batch_size
    if rows is None:
        yield "The data is a stream: samples longer than those seen would need more memory."
    elif rows % batch:
        yield (
            f"The last optimizer step of an epoch trains on {counted(rows % batch, 'row')} instead "
            f"of {batch}; its gradient is averaged over fewer samples, and splits may differ there."
        )
    if facts.has_batch_norm:
        yield "The model has batch normalisation, whose statistics depend on the micro-batch size."
    if configuration.world_size > 1 and alone:
        yield (
            f"Trials ran on one rank: the exchange of gradients between {configuration.world_size} "
            "ranks was not measured, and speeds are those of one rank."
        )
    if configuration.local_sgd_steps > 1:
        yield (
            "What local SGD costs in learning was assumed and not measured: compare a short run "
            "with and without it before a long one."
        )
        if facts.has_batch_norm:
            yield (
                "Under local SGD each rank normalises by its own batches between two averagings; "
                "the running statistics are averaged with the parameters."
            )
    if facts.batch_dependent_loss is not None:
        yield f"The loss depends on its batch: {facts.batch_dependent_loss}."
    for untraced in view.foreseen.untraced if view.foreseen is not None else ():
        yield (
            f"{_capital(str(untraced.get('what')))} could not be traced "
            f"({_ended(str(untraced.get('reason')))}): of its memory nothing was predicted, and "
            "trials alone tell what fits."
        )
    yield "Only speed and memory were measured: no claim is made about the final quality."
    untried = len(history.open_candidates)
    if untried:
        yield (
            f"{counted(untried, 'candidate was', 'candidates were')} neither tried nor ruled out "
            "by a measurement."
        )


def _beside_training(view: RunView) -> Iterator[str]:
    """What was not looked at of evaluation and saving."""
    chosen = view.trial(view.confirmed.number) if view.confirmed is not None else None
    tried = chosen.measured.interlude if chosen is not None and chosen.measured else None
    if tried is None:
        yield "Evaluation, prediction and saving were not run; they have memory peaks of their own."
        return
    for fault in tried.faults:
        yield f"{_capital(_ended(fault))}."
    if tried.evaluation_bytes is not None:
        yield (
            f"Of evaluation one step of {counted(tried.evaluation_batch_size, 'row')} was run: "
            "metrics, and outputs that are kept over more than one step, were not."
        )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _ended(text: str) -> str:
    return text.rstrip(". ")


def slack(memory: MemoryUse) -> Iterator[str]:
    """What the process held resident beyond what its tensors need."""
    resident = memory.high_water_bytes
    if resident is not None and resident > memory.total_bytes:
        yield (
            f"Resident memory went up to {format_bytes(resident)}, against "
            f"{format_bytes(memory.total_bytes)} counted: the C library's allocator keeps freed "
            "memory. Leave room for that where the system enforces the limit."
        )
