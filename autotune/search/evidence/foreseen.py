"""Which candidates the law of memory rules out, before any trial and as trials correct it.

A candidate is ruled out where it is predicted to need more than may be filled. It never runs, and
what is said of it is a prediction. Where nothing is predicted to fit, the one that needs least is
left, so that a trial proves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from autotune.configuration import Checkpointing, Configuration
from autotune.cost.memory.foresight import Foresight
from autotune.outcome import Measured, OutOfMemory
from autotune.search.evidence.finished import ClosedRegion, FinishedTrial
from autotune.search.evidence.history import History
from autotune.units import format_bytes

EVALUATION_FACTOR = 4
"""An evaluation batch of more than so many micro-batches is not recommended: without a backward
pass a few of them keep a device busy."""


def evaluation_size(history: History, configuration: Configuration) -> int | None:
    """The `per_device_eval_batch_size` that goes with a configuration.

    The largest power of two that is predicted to fit; None where nothing is predicted.
    """
    if history.foresight is None or history.usable_bytes is None:
        return None
    most = EVALUATION_FACTOR * configuration.micro_batch_size
    return history.foresight.evaluation_batch_size(history.usable_bytes, most)


def with_foresight(history: History, foresight: Foresight) -> History:
    """The history with what is predicted of its candidates, its trials taken into account."""
    begun = replace(history, foresight=foresight, trials=())
    for trial in history.trials:
        begun = learned(replace(begun, trials=(*begun.trials, trial)), trial)
    return with_ruled_out(replace(begun, trials=history.trials), None)


def learned(history: History, trial: FinishedTrial) -> History:
    """The history whose predictions take its last trial into account.

    A trial that needed far less than was predicted, or was predicted not to fit and did, refutes
    the law: what it had ruled out is open again, and trials alone decide.
    """
    foresight, configuration = history.foresight, trial.configuration
    if foresight is None:
        return history
    match trial.outcome:
        case Measured(memory=memory):
            if foresight.is_refuted_by(configuration, memory) or _was_ruled_out(history, trial):
                return replace(
                    history,
                    foresight=None,
                    regions=tuple(r for r in history.regions if not r.is_foreseen),
                )
            foresight = foresight.measured(configuration, memory)
        case OutOfMemory(is_certain=True, needed_at_least_bytes=int(needed)):
            foresight = foresight.bounded(configuration, needed)
        case _:
            return history
    return replace(history, foresight=foresight)


def _was_ruled_out(history: History, trial: FinishedTrial) -> bool:
    """Whether a trial ran within the limit that was predicted to pass it."""
    assert history.foresight is not None
    need = history.foresight.need(trial.configuration)
    if need is None or history.usable_bytes is None or not isinstance(trial.outcome, Measured):
        return False
    return trial.outcome.memory.total_bytes <= history.usable_bytes < need.total_bytes


def with_ruled_out(history: History, trial: FinishedTrial | None) -> History:
    """The history with regions for every open candidate that is predicted not to fit.

    Args:
        history: With predictions.
        trial: The trial that corrected them; None where it was the law alone.
    """
    foresight, usable = history.foresight, history.usable_bytes
    if foresight is None or usable is None:
        return history
    needs = {
        c: need.total_bytes
        for c in history.open_candidates
        if (need := foresight.need(c)) is not None
    }
    too_large = {c: need for c, need in needs.items() if need > usable}
    nothing_fits = len(too_large) == len(history.open_candidates) and not history.measured
    if too_large and nothing_fits and not any(_proves(history, t) for t in history.trials):
        del too_large[min(too_large, key=lambda c: too_large[c])]
    regions = _regions(too_large, usable, None if trial is None else trial.number)
    return replace(history, regions=(*history.regions, *regions))


def _proves(history: History, trial: FinishedTrial) -> bool:
    """Whether a trial shows that memory does not suffice."""
    return isinstance(trial.outcome, OutOfMemory) and not history.is_outgrown(trial)


def _regions(
    too_large: dict[Configuration, int], usable: int, trial: int | None
) -> Iterator[ClosedRegion]:
    """One region for each checkpointing form and number of ranks."""

    def kind(candidate: Configuration) -> tuple[int, Checkpointing]:
        return candidate.world_size, candidate.checkpointing

    for (_, form), group in groupby(too_large, key=kind):
        closed = tuple(group)
        least = min(closed, key=lambda c: too_large[c])
        sizes = [str(c.micro_batch_size) for c in closed]
        plural = "s" if len(sizes) > 1 else ""
        yield ClosedRegion(
            what=f"micro-batch size{plural} {', '.join(sizes)} with {form}",
            reason=f"predicted to need {'at least ' if plural else ''}"
            f"{format_bytes(too_large[least])}, {format_bytes(too_large[least] - usable)} more "
            f"than the {format_bytes(usable)} that may be filled",
            trial=trial,
            by_memory=True,
            is_foreseen=True,
            configurations=closed,
        )
