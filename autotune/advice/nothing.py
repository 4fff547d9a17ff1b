"""Why a run has no answer: nothing fits, or nothing works."""

from __future__ import annotations

from collections import Counter

from autotune.outcome import PROCESS_ALONE, Measured, Outcome, OutOfMemory
from autotune.search.evidence.history import History
from autotune.units import counted, format_bytes


def nothing_fits(history: History, limit_bytes: int) -> tuple[str, str]:
    """Cause and remedy of a run without any measured trial: why, by count, and what would fit."""
    outcomes: list[Outcome] = [t.outcome for t in history.trials]
    ran_out = [o for o in outcomes if isinstance(o, OutOfMemory)]
    others = [o for o in outcomes if not isinstance(o, OutOfMemory | Measured)]
    foreseen = sum(len(r.configurations) for r in history.regions if r.is_foreseen)
    closed = sum(len(r.configurations) for r in history.regions) - foreseen
    parts = []
    if ran_out:
        parts.append(f"{len(ran_out)} ran out of memory")
    told = Counter((o.kind.replace("_", " "), o.cause.rstrip(".")) for o in others)
    parts += [
        f"{'one' if count == 1 else count} {kind}: {cause}" for (kind, cause), count in told.items()
    ]
    if closed:
        parts.append(f"{closed} were ruled out by those")
    if foreseen:
        parts.append(f"{foreseen} are predicted not to fit and were not run")
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
        need = history.need(configuration)
        needs_it = f"needs more than {format_bytes(least)}"
        if need is not None and need.total_bytes > least:
            needs_it = f"is predicted to need {format_bytes(need.total_bytes)}"
        remedy = (
            f"The nearest was {configuration}, which {needs_it} where "
            f"{format_bytes(limit_bytes)} are allowed: raise --memory-limit, shorten samples with "
            "--max-length, or use a smaller model or LoRA."
        )
    else:
        remedy = "Raise --memory-limit, shorten samples with --max-length, or use a smaller model."
    return cause, remedy


def none_is_predicted_to_fit(history: History, limit_bytes: int) -> tuple[str, str] | None:
    """Cause and remedy where every prediction passes the limit and time ended before the proof.

    Returns:
        None where something may fit, or nothing is known of some candidate.
    """
    candidates = history.space.candidates
    if not candidates or not all(map(history.is_foreseen_to_pass_the_limit, candidates)):
        return None
    needs = [(need.total_bytes, c) for c in candidates if (need := history.need(c)) is not None]
    least, configuration = min(needs, key=lambda pair: pair[0])
    return (
        f"None of {counted(len(candidates), 'configuration')} is predicted to fit: "
        f"{configuration} needs least, {format_bytes(least)} where {format_bytes(limit_bytes)} are "
        "allowed. The budget ended before a trial could prove it.",
        "Raise --memory-limit, shorten samples with --max-length, or use a smaller model or LoRA.",
    )
