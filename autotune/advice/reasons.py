"""Why a configuration is the answer, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from autotune.advice.ranks import rank_reasons
from autotune.configuration import NO_CHECKPOINTING, Configuration
from autotune.events import Confirmed
from autotune.outcome import Interval, Measured, OutOfMemory, Speed
from autotune.search.batch_size import advice, noise_of
from autotune.search.evidence.foreseen import evaluation_size
from autotune.search.evidence.history import History
from autotune.search.evidence.statistics import ratio_of_times
from autotune.units import counted, format_bytes, format_change, format_rate, format_seconds
from autotune.view import RunView, TrialView, how_many, trials_and_repeats
from autotune.workload.facts import WorkloadFacts

TELLING_DIFFERENCE = 0.02
"""Between a ratio of configurations and the ratio of their rates, from which on it is explained."""


def reasons(
    view: RunView,
    history: History,
    chosen: TrialView,
    confirmed: Confirmed,
    facts: WorkloadFacts,
) -> Iterator[str]:
    """The reasons, the most important first.

    Args:
        view: The run, confirmation included.
        history: Its trials with the space they come from.
        chosen: The confirmed trial.
        confirmed: What confirmation found.
        facts: Of the workload.
    """
    configuration = chosen.configuration
    yield _speed_reason(view, history, configuration, confirmed)
    yield from _noise_reasons(confirmed)
    if view.machine is not None:
        limit = view.machine.memory_limit_bytes
        yield (
            f"At its peak, on the longest samples, it occupies "
            f"{format_bytes(confirmed.memory.total_bytes)} of {format_bytes(limit)} "
            f"({view.machine.limit_source}); {format_bytes(limit - view.machine.usable_bytes)} of "
            "that are never filled, as a margin."
        )
    yield from _batch_reasons(view, history, configuration, facts)
    yield from shared_reasons(view)
    yield from _memory_reasons(view, history)
    yield from _checkpointing_reasons(history, configuration)
    yield from _evaluation_reasons(history, chosen)
    if view.parity is not None:
        yield view.parity.detail
    yield from rank_reasons(view, history, configuration, facts)
    yield from facts.notes


def _batch_reasons(
    view: RunView, history: History, configuration: Configuration, facts: WorkloadFacts
) -> Iterator[str]:
    size, before = configuration.global_batch_size, history.space.global_batch_size
    if size != before:
        noise = noise_of(view.noise_scale) if view.noise_scale is not None else None
        total_steps = view.started.request.get("total_steps") if view.started else None
        yield from advice(
            before,
            size,
            facts,
            noise,
            total_steps=total_steps if isinstance(total_steps, int) else None,
        ).sentences
        return
    yield (
        f"The global batch size stays {size}: every full optimizer step trains on the same rows in "
        "the same order as the baseline's."
    )


def _speed_reason(
    view: RunView, history: History, configuration: Configuration, confirmed: Confirmed
) -> str:
    compared = "round" if _is_alone(view, confirmed) else "interleaved round"
    rounds = f"in {counted(confirmed.num_pairs, compared)}, in fresh processes"
    if configuration == history.space.baseline:
        return _why_no_change(view, history, confirmed.num_pairs, rounds)
    if confirmed.baseline_number is None:
        baseline = history.space.baseline
        region, need = history.closed_by(baseline), history.need(baseline)
        if region is not None and region.is_foreseen and need is not None:
            return (
                f"The baseline {baseline} was not run: it is predicted to need "
                f"{format_bytes(need.total_bytes)}, more than may be filled; of what fits, this is "
                f"the fastest, measured again {rounds}."
            )
        return (
            f"The baseline {history.space.baseline} could not be measured; of what could, this is "
            f"the fastest, measured again {rounds}."
        )
    change = (
        f"{_change(confirmed.speedup, confirmed.speedup_ci95)} samples per second against "
        f"{history.space.baseline}"
    )
    useful = _useful(confirmed)
    if not history.may_be_chosen(history.space.baseline):
        return _as_asked(history, configuration, confirmed, f"{change}, {rounds}", useful)
    if confirmed.is_tie:
        same = "as fast as" if useful is None else "as good as"
        weighed = f"; {useful}" if useful is not None else ""
        why = _why_of_those_that_tie(history, configuration, confirmed)
        return f"It is {same} the baseline ({change}, {rounds}{weighed}){why}."
    return f"{change}, {rounds}{f'; {useful}' if useful is not None else ''}."


def _noise_reasons(confirmed: Confirmed) -> Iterator[str]:
    """What the machine did meanwhile to the figures."""
    low, high = confirmed.speedup_ci95
    if low == high:
        return
    if not confirmed.settled:
        yield (
            f"The interval of that ratio, {low:.2f} to {high:.2f}, is wide: this machine was noisy "
            "while it was measured."
        )
    best, base = confirmed.samples_per_s, confirmed.baseline_samples_per_s
    if abs(math.log(best / base / confirmed.speedup)) > math.log1p(TELLING_DIFFERENCE):
        yield (
            "That ratio is taken round by round, where a round that something else on this machine "
            f"held up counts little; over all rounds together it is {format_rate(best)} against "
            f"{format_rate(base)} samples/s ({format_change(best / base)})."
        )


def _is_alone(view: RunView, confirmed: Confirmed) -> bool:
    """Whether nothing stood beside the recommendation when it was confirmed."""
    measured = [t for t in view.trials if t.purpose == "confirm" and t.state == "measured"]
    return confirmed.baseline_number in (None, confirmed.number) and len(measured) == 1


def _change(value: float, interval: Interval) -> str:
    low, high = interval
    return f"{format_change(value)} (95 %: {format_change(low)} to {format_change(high)})"


def _useful(confirmed: Confirmed) -> str | None:
    """The change of what is learnt per second; None where a sample teaches alike."""
    if confirmed.useful_speedup is None or confirmed.useful_speedup_ci95 is None:
        return None
    change = _change(confirmed.useful_speedup, confirmed.useful_speedup_ci95)
    return f"{change} useful samples per second, weighed with what a sample teaches"


def _as_asked(
    history: History,
    configuration: Configuration,
    confirmed: Confirmed,
    change: str,
    useful: str | None,
) -> str:
    """What stands because it was asked for, whatever it is worth, and what it is worth."""
    found = f"{change}{f'; {useful}' if useful is not None else ''}"
    value = confirmed.useful_speedup or confirmed.speedup
    verdict = "That is expected to be worse than the baseline" if value < 1 else ""
    if confirmed.is_tie:
        verdict = "That is not shown to be better than the baseline"
        if value < 1:
            verdict += ", and expected to be worse"
    steps = history.required_local_sgd_steps
    rest = f" {verdict}: --local-sgd auto leaves the choice to what is measured." if verdict else ""
    return (
        f"Local SGD every {steps} steps is taken because it was asked for. "
        f"{configuration}: {found}.{rest}"
    )


def _why_of_those_that_tie(
    history: History, configuration: Configuration, confirmed: Confirmed
) -> str:
    """What speaks for one of two that are as good, where something does."""
    baseline, before = history.space.baseline, confirmed.baseline_memory
    if configuration.world_size < baseline.world_size:
        return " and needs fewer processes"
    after_bytes = confirmed.memory.total_bytes
    if before is None or after_bytes >= before.total_bytes:
        return ""
    if history.is_same_memory(before.total_bytes, after_bytes):
        return ""
    return " and leaves more memory free"


def _why_no_change(view: RunView, history: History, num_rounds: int, rounds: str) -> str:
    num_others = sum(
        t.is_search and t.configuration != history.space.baseline for t in history.trials
    )
    if not num_others:
        return _nothing_else_tried(view)
    again = [t for t in view.trials if t.purpose == "confirm" and t.measured is not None]
    speeds = {t.configuration: t.measured.speed for t in again if t.measured is not None}
    own = speeds.pop(history.space.baseline, None)
    plural = "s" if num_others > 1 else ""
    tried = f"{num_others} other configuration{plural} {'were' if plural else 'was'} tried"
    if not speeds or own is None:
        return f"Nothing measured is faster than what you have: {tried}."
    best, speed = max(speeds.items(), key=lambda pair: pair[1].samples_per_s)
    ratio = ratio_of_times(_by_round(speed, num_rounds), _by_round(own, num_rounds))
    return (
        f"Nothing proved faster than what you have: {tried}, and the best of them, {best}, made "
        f"{_change(ratio.value, ratio.interval)} samples per second against it, {rounds}."
    )


def _by_round(speed: Speed, num_rounds: int) -> list[float]:
    """Seconds per sample of each round of confirmation; all rounds have as many steps."""
    num_rounds = min(num_rounds, len(speed.step_times_s))
    size = len(speed.step_times_s) // num_rounds
    starts = range(0, size * num_rounds, size)
    return [
        sum(speed.step_times_s[n : n + size]) / sum(speed.step_samples[n : n + size])
        for n in starts
    ]


def _nothing_else_tried(view: RunView) -> str:
    ended = view.search_ended
    why = f": {ended.reason}" if ended is not None else ""
    told = f"Nothing but what you have was tried{why}."
    if ended is None or not ended.is_budget_spent:
        return told
    took_s = next((t.wall_s for t in view.trials if t.measured is not None), None)
    trial = f", and the first trial took {format_seconds(took_s)}" if took_s else ""
    candidates = counted(ended.num_untried, "candidate was", "candidates were")
    return f"{told} A larger budget tries more: {candidates} left untried{trial}."


def shared_reasons(view: RunView) -> Iterator[str]:
    """What rests on trials that engines on other machines ran."""
    origins = [t.origin for t in view.trials if t.origin is not None]
    if origins:
        hosts = sorted({origin.host for origin in origins})
        yield (
            f"{counted(len(origins), 'trial was', 'trials were')} run on {', '.join(hosts)}, by "
            "engines that share the study on machines like this one; what the last rounds compare "
            "was measured here."
        )


def _memory_reasons(view: RunView, history: History) -> Iterator[str]:
    ran_out = [t for t in history.trials if isinstance(t.outcome, OutOfMemory)]
    by_trials = [r for r in history.regions if r.by_memory and not r.is_foreseen]
    closed = sum(len(r.configurations) for r in by_trials)
    certain = [t for t in ran_out if not t.is_uncertain]
    suspected = [t for t in ran_out if t.is_uncertain]
    for found, what in (
        (certain, "ran out of memory"),
        (suspected, "ended by a kill that was probably for want of memory"),
    ):
        if not found:
            continue
        smallest = min(found, key=lambda t: t.configuration.micro_batch_size)
        more = ", the smallest" if len(found) > 1 else ""
        num_trials = sum(t.is_search for t in found)
        who = trials_and_repeats(num_trials, len(found) - num_trials)
        sentence = f"{who} {what}{more} at {smallest.configuration}"
        if closed and found is (certain or suspected):
            ruled_out = counted(closed, "further candidate was", "further candidates were")
            sentence += f"; {ruled_out} ruled out by that"
        yield f"{sentence}."
    foreseen = sum(len(r.configurations) for r in history.regions if r.is_foreseen)
    if foreseen:
        yield (
            f"{counted(foreseen, 'candidate was', 'candidates were')} never run: a step traced on "
            "tensors without data predicts a need of more than may be filled."
        )
    errors, foretold = [], []
    for trial in view.trials:
        if trial.measured is not None and trial.predicted_bytes is not None:
            errors.append(abs(trial.predicted_bytes / trial.measured.memory.total_bytes - 1))
            foretold.append(trial)
    if errors:
        yield (
            f"The peak memory of {how_many(foretold)} was predicted before; what was "
            f"measured differs by {_percent(max(errors))}."
        )


def _percent(part: float) -> str:
    """A part in words, for a sentence."""
    return "less than 0.1 %" if part < 1e-3 else f"{100 * part:.1f} % at most"


def _evaluation_reasons(history: History, chosen: TrialView) -> Iterator[str]:
    size = evaluation_size(history, chosen.configuration)
    num_bytes = (
        None
        if size is None or history.foresight is None
        else (history.foresight.evaluation_bytes(size))
    )
    if num_bytes is None:
        return
    tried = chosen.measured.interlude if chosen.measured is not None else None
    seen = ""
    if tried is not None and tried.evaluation_bytes is not None:
        seen = (
            f"; one such step of {counted(tried.evaluation_batch_size, 'row')} occupied "
            f"{format_bytes(tried.evaluation_bytes)}"
        )
    saved = ", and weights and optimizer state were saved" if tried and tried.is_saved else ""
    yield (
        f"per_device_eval_batch_size={size} is predicted to occupy {format_bytes(num_bytes)} "
        f"during evaluation{seen}{saved}."
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
