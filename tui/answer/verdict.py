"""The answer in a few sentences: how much faster, how sure, how much memory, against what."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.display.naming import known_number, repeat
from autotune.events import Confirmed
from autotune.sureness import doubt, is_settled, is_wide
from autotune.units import format_bytes, format_change, format_rate
from autotune.view import RunView
from tui.answer.read import Answer, Offer, Readings


def headline(answer: Answer, view: RunView) -> str:
    """What to do, in one line."""
    if answer.is_baseline:
        tried = any(t.measured is not None and t.purpose == "search" for t in view.trials)
        why = "what you have is the best that was found" if tried else "nothing else was measured"
        return f"keep {answer.configuration}: {why}"
    return f"use {answer.configuration} instead of {answer.baseline.configuration}"


def speed(answer: Answer, confirmed: Confirmed | None) -> str:
    """The measured gain with its interval and the number of pairs it rests on."""
    rate = f"{format_rate(answer.measured.samples_per_s)} samples/s"
    if answer.is_baseline or answer.speedup is None:
        low, high = answer.measured.samples_per_s_ci95
        missing = "" if answer.baseline.measured else "; what you have now could not be measured"
        open_ = "" if confirmed is None or is_settled(confirmed) else "not settled: "
        return f"{open_}{rate} (95 %: {format_rate(low)} to {format_rate(high)}){missing}"
    low, high = answer.speedup.ci95
    interval = f"95 %: {format_change(low)} to {format_change(high)}"
    pairs = f", {_pairs(confirmed)}" if confirmed is not None else ""
    before = answer.baseline.measured
    instead = f" instead of {format_rate(before.samples_per_s)}" if before is not None else ""
    change = format_change(answer.speedup.value)
    settled = confirmed is None or confirmed.settled
    if not settled or is_wide(answer.speedup.ci95):
        open_ = doubt(answer.speedup.ci95, settled=settled)
        return f"{open_}: {change} ({interval}{pairs}): {rate}{instead}"
    if confirmed is not None and confirmed.is_tie:
        return f"as fast as what you have: {change} ({interval}{pairs})"
    return f"{change} ({interval}{pairs}): {rate}{instead}"


def memory(readings: Readings, limit_bytes: int) -> str:
    """The peak against the limit."""
    peak = readings.memory.total_bytes
    if not limit_bytes:
        return f"peak {format_bytes(peak)}"
    free = 100 * (limit_bytes - peak) / limit_bytes
    return f"peak {format_bytes(peak)} of {format_bytes(limit_bytes)}, {free:.0f} % free"


def learning(answer: Answer) -> str:
    """What a sample teaches, against the baseline."""
    efficiency = answer.sample_efficiency
    size = answer.configuration.global_batch_size
    same = size == answer.baseline.configuration.global_batch_size
    batch = f"the same global batch of {size}" if same else f"a global batch of {size}"
    if efficiency.basis == "not needed":
        return f"{batch}: every step trains on the same rows"
    low, high = efficiency.interval
    return (
        f"{batch}: a sample teaches {100 * efficiency.value:.0f} % "
        f"({100 * low:.0f} to {100 * high:.0f} %, {efficiency.basis})"
    )


def evidence(view: RunView) -> Iterator[tuple[str, str, str]]:
    """Rows of the re-measurement: what, rate with interval, peak memory."""
    confirmed = view.confirmed
    if confirmed is None:
        return
    if confirmed.baseline_number is not None and confirmed.baseline_number != confirmed.number:
        yield (
            _repeated("baseline", confirmed.baseline_number, view),
            _rate(confirmed.baseline_samples_per_s, confirmed.baseline_samples_per_s_ci95),
            "–"
            if confirmed.baseline_memory is None
            else format_bytes(confirmed.baseline_memory.total_bytes),
        )
    yield (
        _repeated("chosen", confirmed.number, view),
        _rate(confirmed.samples_per_s, confirmed.samples_per_s_ci95),
        format_bytes(confirmed.memory.total_bytes),
    )


def _repeated(what: str, number: int, view: RunView) -> str:
    """A trial of the search as the table names it, and which trial measured it again."""
    return f"#{known_number(number, view)} {what}{repeat(number, view)}"


def sureness(confirmed: Confirmed | None) -> str:
    """How the comparison was made, and whether it is settled."""
    if confirmed is None:
        return "not measured again"
    if confirmed.baseline_number in (None, confirmed.number):
        rounds = f"{confirmed.num_pairs} round{'' if confirmed.num_pairs == 1 else 's'}"
        how = f"{rounds} in a fresh process, with nothing to compare it with"
    else:
        how = f"{_pairs(confirmed)} in fresh processes, interleaved"
    return how if confirmed.settled else f"{how}; the interval was still narrowing"


def against(offer: Offer, answer: Answer, view: RunView) -> str:
    """What an alternative gives and takes, against the recommended one.

    The baseline was confirmed beside it, and others may have been. One that was measured by the
    search alone is held against what the search measured of the recommended one.
    """
    own, base = answer.measured, answer.baseline.measured
    is_baseline = offer.configuration == answer.baseline.configuration and base is not None
    theirs = base if is_baseline and base is not None else offer.measured
    is_again = is_baseline or any(
        t.purpose == "confirm" and t.measured is not None and t.configuration == offer.configuration
        for t in view.trials
    )
    searched = None if is_again else _searched(answer, view)
    rate = own.samples_per_s if searched is None else searched
    gap = theirs.memory.total_bytes - own.memory.total_bytes
    sign = "−" if gap < 0 else "+"
    change = format_change(theirs.samples_per_s / rate)
    return f"{change} speed, {sign}{format_bytes(abs(gap))} memory"


def _searched(answer: Answer, view: RunView) -> float | None:
    """What the search measured of the recommended configuration, once."""
    for trial in view.trials:
        is_it = trial.configuration == answer.configuration
        if is_it and trial.purpose in ("baseline", "search") and trial.measured is not None:
            return trial.measured.samples_per_s
    return None


def _pairs(confirmed: Confirmed) -> str:
    return f"{confirmed.num_pairs} pair{'' if confirmed.num_pairs == 1 else 's'}"


def _rate(value: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{format_rate(value)} samples/s ({format_rate(low)} to {format_rate(high)})"
