"""The answer of a run: configuration, evidence, alternatives, limits, as the public document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pydantic import JsonValue, TypeAdapter

from autotune.configuration import NO_CHECKPOINTING, Configuration
from autotune.events import Confirmed, Document
from autotune.outcome import PROCESS_ALONE, Measured, MemoryUse, Outcome, OutOfMemory
from autotune.request import Request
from autotune.search.history import History
from autotune.search.ranking import AlternativeKind, Standing
from autotune.units import format_bytes, format_change, format_rate
from autotune.view import RunView, TrialView
from autotune.workload.facts import WorkloadFacts

SCHEMA = 1
_LONG_TAIL = 2.0
"""Longest sample over the median one from which grouping by length is worth naming."""


def document(view: RunView, history: History, request: Request) -> Document:
    """The public JSON document of a confirmed run.

    Args:
        view: The run, confirmation included.
        history: Its trials with the space they come from.
        request: What was asked for.

    Raises:
        ValueError: The run is not confirmed.
    """
    confirmed = view.confirmed
    chosen = view.trial(confirmed.number) if confirmed else None
    if confirmed is None or chosen is None or chosen.measured is None:
        raise ValueError("A run that is not confirmed has no recommendation.")
    baseline = (
        view.trial(confirmed.baseline_number) if confirmed.baseline_number is not None else None
    )
    facts = _facts(view)
    return {
        "schema": SCHEMA,
        "run": view.run,
        "recommendation": {
            "configuration": _json(chosen.configuration),
            "measured": _readings(chosen.measured),
            "sample_efficiency": {"value": 1.0, "interval": [1.0, 1.0], "basis": "not needed"},
            "baseline": {
                "configuration": _json(history.space.baseline),
                "measured": _readings(baseline.measured)
                if baseline is not None and baseline.measured is not None
                else {},
            },
            "speedup": {
                "value": confirmed.speedup,
                "ci95": list(confirmed.speedup_ci95),
            }
            if baseline is not None
            else None,
            "memory_limit_bytes": view.machine.memory_limit_bytes if view.machine else 0,
            "reasons": list(_reasons(view, history, chosen, confirmed, facts)),
            "also_consider": list(_also_consider(view, facts)),
            "alternatives": _alternatives(view, history, chosen.configuration),
            "not_covered": [
                *_not_covered(history, facts, chosen.configuration),
                *_slack(confirmed.memory),
            ],
        },
        "trials": trials_json(view),
        "workload": {
            "name": facts.name,
            "task": facts.task,
            "model_class": facts.model_class,
            "precision": facts.precision,
            "loss_repair": view.parity is not None and view.parity.repaired,
        },
        "environment": dict(view.workload.environment) if view.workload else {},
        "machine": view.machine.machine if view.machine else {},
        "cost": cost_json(view),
    }


def trials_json(view: RunView) -> list[JsonValue]:
    """All trials of a run as the public document lists them."""
    return [
        {
            "number": trial.number,
            "purpose": trial.purpose,
            "configuration": _json(trial.configuration),
            "outcome": trial.outcome.kind,
            "measured": _readings(trial.outcome) if isinstance(trial.outcome, Measured) else {},
            "predicted": trial.predicted or {},
            "cause": None if isinstance(trial.outcome, Measured) else trial.outcome.cause,
            # Of another engine of a shared study: nothing was measured here.
            **({"host": trial.origin.host} if trial.origin is not None else {}),
        }
        for trial in sorted(view.trials, key=lambda t: t.number)
        if trial.outcome is not None
    ]


def cost_json(view: RunView) -> Document:
    """What a run took so far."""
    finished = [t for t in view.trials if t.wall_s is not None]
    return {
        "wall_s": round(view.now_s, 3),
        "trials": len(finished),
        "trial_s": round(sum(t.wall_s or 0.0 for t in finished), 3),
    }


def _json(configuration: Configuration) -> Document:
    return configuration.to_json()  # type: ignore[return-value]


def _readings(measured: Measured) -> Document:
    memory = measured.memory
    return {
        "samples_per_s": measured.samples_per_s,
        "samples_per_s_ci95": list(measured.samples_per_s_ci95),
        "tokens_per_s": measured.speed.tokens_per_s,
        "step_s": measured.speed.step_s,
        "memory": {
            "allocated_bytes": memory.allocated_bytes,
            "reserved_bytes": memory.reserved_bytes,
            "outside_bytes": memory.outside_bytes,
            "total_bytes": memory.total_bytes,
            "method": memory.method,
        },
    }


def _facts(view: RunView) -> WorkloadFacts:
    if view.workload is None:
        raise ValueError("The run has no workload.")
    return TypeAdapter(WorkloadFacts).validate_python(view.workload.facts)


def _reasons(
    view: RunView,
    history: History,
    chosen: TrialView,
    confirmed: Confirmed,
    facts: WorkloadFacts,
) -> Iterator[str]:
    configuration = chosen.configuration
    yield _speed_reason(view, history, configuration, confirmed)
    if not confirmed.settled and confirmed.speedup_ci95[0] < confirmed.speedup_ci95[1]:
        low, high = confirmed.speedup_ci95
        yield (
            f"The interval of that ratio, {low:.2f} to {high:.2f}, is wide: this machine was noisy "
            "while it was measured."
        )
    if view.machine is not None:
        limit = view.machine.memory_limit_bytes
        yield (
            f"At its peak, on the longest samples, it occupies "
            f"{format_bytes(confirmed.memory.total_bytes)} of {format_bytes(limit)} "
            f"({view.machine.limit_source}); {format_bytes(limit - view.machine.usable_bytes)} of "
            "that stay free as a margin."
        )
    yield (
        f"The global batch size stays {configuration.global_batch_size}: every full optimizer step "
        "trains on the same rows in the same order as the baseline's."
    )
    yield from _shared_reasons(view)
    yield from _memory_reasons(history)
    yield from _checkpointing_reasons(history, configuration)
    if view.parity is not None:
        yield view.parity.detail
    if configuration.world_size == 1:
        yield "Local SGD is left out: one process has nobody to average with."
    yield from facts.notes


def _speed_reason(
    view: RunView, history: History, configuration: Configuration, confirmed: Confirmed
) -> str:
    rounds = f"in {confirmed.num_pairs} interleaved rounds, each in its own fresh process"
    if configuration == history.space.baseline:
        return _why_no_change(view, history, rounds)
    if confirmed.baseline_number is None:
        return (
            f"The baseline {history.space.baseline} could not be measured; of what could, this is "
            f"the fastest, measured again {rounds}."
        )
    low, high = confirmed.speedup_ci95
    change = f"{format_change(confirmed.speedup)} (95 %: {format_change(low)} to "
    change += f"{format_change(high)}) samples per second against {history.space.baseline}"
    if confirmed.is_tie:
        return f"It is as fast as the baseline ({change}, {rounds}) and leaves more memory free."
    return f"{change}, {rounds}."


def _why_no_change(view: RunView, history: History, rounds: str) -> str:
    num_others = sum(
        t.is_search and t.configuration != history.space.baseline for t in history.trials
    )
    if not num_others:
        ended = view.search_ended
        return (
            "Nothing but what you have was tried"
            f"{f': {ended.reason}' if ended is not None else ''}."
        )
    again = [t for t in view.trials if t.purpose == "confirm" and t.measured is not None]
    rates = {t.configuration: t.measured.samples_per_s for t in again if t.measured is not None}
    own = rates.pop(history.space.baseline, None)
    plural = "s" if num_others > 1 else ""
    tried = f"{num_others} other configuration{plural} {'were' if plural else 'was'} tried"
    if not rates or own is None:
        return f"Nothing measured is faster than what you have: {tried}."
    best, rate = max(rates.items(), key=lambda pair: pair[1])
    return (
        f"Nothing proved faster than what you have: {tried}, and the best of them, {best}, made "
        f"{format_rate(rate)} samples/s against {format_rate(own)} {rounds}."
    )


def _shared_reasons(view: RunView) -> Iterator[str]:
    """What rests on trials that engines on other machines ran."""
    origins = [t.origin for t in view.trials if t.origin is not None]
    if origins:
        hosts = sorted({origin.host for origin in origins})
        yield (
            f"{len(origins)} trial(s) were run on {', '.join(hosts)}, by engines that share the "
            "study on machines like this one; what the last rounds compare was measured here."
        )


def _memory_reasons(history: History) -> Iterator[str]:
    ran_out = [t for t in history.trials if isinstance(t.outcome, OutOfMemory)]
    closed = sum(len(r.configurations) for r in history.regions if r.by_memory)
    if ran_out:
        smallest = min(ran_out, key=lambda t: t.configuration.micro_batch_size)
        yield (
            f"{len(ran_out)} trial(s) ran out of memory, the smallest at "
            f"{smallest.configuration}; {closed} further candidate(s) were ruled out by that."
        )


def _checkpointing_reasons(history: History, configuration: Configuration) -> Iterator[str]:
    for ruled_out in history.space.ruled_out:
        if ruled_out.what.startswith("checkpointing"):
            yield f"{ruled_out.what.capitalize()} is left out: {ruled_out.reason}."
    has_forms = len(history.space.forms) > 1
    tried = any(t.configuration.checkpointing.is_on for t in history.trials)
    if configuration.checkpointing.is_on:
        yield _why_checkpointing(history, configuration)
    elif has_forms and not tried:
        yield (
            "Checkpointing is left off without a trial: it recomputes activations to save memory, "
            "and no larger micro-batch that would need the memory promised a gain."
        )


def _why_checkpointing(history: History, configuration: Configuration) -> str:
    """Why a form of checkpointing is part of the answer: never without having tried it."""
    form = str(configuration.checkpointing).capitalize()
    without = replace(configuration, checkpointing=NO_CHECKPOINTING)
    if any(isinstance(t.outcome, Measured) for t in history.of(without)):
        return (
            f"{form} was measured to be no slower than training without it, or needs less memory."
        )
    region = history.closed_by(without)
    if history.of(without) or (region is not None and region.by_memory):
        return f"{form} makes room for this micro-batch."
    return f"{form} stays as you have it: {without} was not tried."


def _also_consider(view: RunView, facts: WorkloadFacts) -> Iterator[str]:
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
    if on_device:
        yield "untested: data loader workers, if the device waits for data"


def _alternatives(view: RunView, history: History, chosen: Configuration) -> list[JsonValue]:
    """Other configurations that somebody may prefer, by the trials of the search.

    What was measured again beside the chosen one and did not win is left out where speed is its
    only merit: the search's reading of it has been overtaken.
    """
    trial = next((t for t in history.measured if t.configuration == chosen), None)
    if trial is None:
        return []
    beaten = {t.configuration for t in view.trials if t.purpose == "confirm"} - {chosen}
    return [
        {
            "kind": other.kind,
            "configuration": _json(other.trial.configuration),
            "measured": _readings(other.trial.measured),
            "reason": other.reason,
        }
        for other in Standing(history.measured).alternatives(trial, history.space.baseline)
        if other.trial.configuration != chosen
        and not (other.kind == "fastest" and other.trial.configuration in beaten)
    ]


def _not_covered(
    history: History, facts: WorkloadFacts, configuration: Configuration
) -> Iterator[str]:
    yield "Evaluation, prediction and saving were not run; they have memory peaks of their own."
    rows, batch = facts.num_rows, configuration.global_batch_size
    if rows is None:
        yield "The data is a stream: samples longer than those seen would need more memory."
    elif rows % batch:
        yield (
            f"The last optimizer step of an epoch trains on {rows % batch} rows instead of "
            f"{batch}; its gradient is averaged over fewer samples, and splits may differ there."
        )
    if facts.has_batch_norm:
        yield "The model has batch normalisation, whose statistics depend on the micro-batch size."
    if configuration.world_size > 1:
        yield (
            f"Trials ran on one rank: the exchange of gradients between {configuration.world_size} "
            "ranks was not measured, and speeds are those of one rank."
        )
    if facts.batch_dependent_loss is not None:
        yield f"The loss depends on its batch: {facts.batch_dependent_loss}."
    yield "Only speed and memory were measured: no claim is made about the final quality."
    untried = len(history.open_candidates)
    if untried:
        yield f"{untried} candidate(s) were neither tried nor ruled out by a measurement."


def _slack(memory: MemoryUse) -> Iterator[str]:
    """What the process held resident beyond what its tensors need."""
    resident = memory.high_water_bytes
    if resident is not None and resident > memory.total_bytes:
        yield (
            f"Resident memory went up to {format_bytes(resident)}, against "
            f"{format_bytes(memory.total_bytes)} counted: the C library's allocator keeps freed "
            "memory. Leave room for that where the system enforces the limit."
        )


def kinds(document: Document) -> tuple[AlternativeKind | str, ...]:
    """The kinds of alternatives that a document offers."""
    answer = document.get("recommendation")
    found = answer.get("alternatives") if isinstance(answer, dict) else None
    return tuple(
        str(item["kind"])
        for item in (found if isinstance(found, list) else [])
        if isinstance(item, dict) and "kind" in item
    )


def nothing_fits(history: History, limit_bytes: int) -> tuple[str, str]:
    """Cause and remedy of a run without any measured trial: why, by count, and what would fit."""
    outcomes: list[Outcome] = [t.outcome for t in history.trials]
    ran_out = [o for o in outcomes if isinstance(o, OutOfMemory)]
    others = [o for o in outcomes if not isinstance(o, OutOfMemory | Measured)]
    closed = sum(len(region.configurations) for region in history.regions)
    parts = []
    if ran_out:
        parts.append(f"{len(ran_out)} ran out of memory")
    parts += [f"one {other.kind.replace('_', ' ')}: {other.cause}" for other in others]
    if closed:
        parts.append(f"{closed} were ruled out by those")
    cause = f"None of {len(history.space.candidates)} configurations works: {'; '.join(parts)}."
    if not ran_out:
        return cause, "Mend what the trials report; `autotune trial RUN NUMBER` repeats one alone."
    needs = [
        (o.needed_at_least_bytes, t.configuration)
        for t in history.trials
        for o in (t.outcome,)
        if isinstance(o, OutOfMemory) and o.needed_at_least_bytes is not None
    ]
    if needs:
        least, configuration = min(needs, key=lambda pair: pair[0])
        if all(o.cause.startswith(PROCESS_ALONE) for o in ran_out):
            return cause, (
                f"No model is small enough: libraries alone take {format_bytes(least)} here. "
                "Raise --memory-limit."
            )
        remedy = (
            f"The nearest was {configuration}, which needs more than {format_bytes(least)} where "
            f"{format_bytes(limit_bytes)} are allowed: raise --memory-limit, shorten samples with "
            "--max-length, or use a smaller model or LoRA."
        )
    else:
        remedy = "Raise --memory-limit, shorten samples with --max-length, or use a smaller model."
    return cause, remedy
