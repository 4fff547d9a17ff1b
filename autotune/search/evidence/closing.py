"""Which candidates a trial rules out, and why.

Memory grows with the micro-batch size and with what a checkpointing form keeps, so that a
configuration that ran out of memory closes every one that needs at least as much. The peak of a
training step is the largest of several lines in the micro-batch size, hence convex: a line through
two known points stays below it further out, and closes what it puts above the limit.

Where a step could be traced, `foreseen` knows the need of every candidate, and the lines are left
out.

A failure that is not memory closes sizes only where a smaller one works, and a checkpointing form
only where another one works. A trial that timed out, was stopped, or was killed for another reason
than memory closes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from autotune.configuration import Checkpointing, Configuration
from autotune.outcome import Failed, Measured, OutOfMemory
from autotune.search.evidence.finished import ClosedRegion, FinishedTrial
from autotune.search.evidence.foreseen import learned, with_ruled_out
from autotune.search.evidence.history import History
from autotune.units import format_bytes

PREDICTION_MARGIN = 0.05
"""A prediction closes a candidate only this far above what may be filled: an allocator's steps
and gaps bend the line."""


def with_trial(history: History, trial: FinishedTrial) -> History:
    """The history after one more trial; new regions stand at the end of its `regions`."""
    longer = learned(replace(history, trials=(*history.trials, trial)), trial)
    regions = list(longer.regions)
    configuration = trial.configuration
    if configuration.local_sgd_steps > 1 or (
        configuration.world_size not in history.space.world_sizes
    ):
        return with_ruled_out(longer, trial)
    for region in close(longer.arm(configuration.world_size, is_for_memory=True), trial):
        closed = {c for r in regions for c in r.configurations}
        left = tuple(c for c in region.configurations if c not in closed)
        if left:
            regions.append(replace(region, configurations=left))
    return with_ruled_out(replace(longer, regions=tuple(regions)), trial)


def with_trials(history: History, trials: Iterable[FinishedTrial]) -> History:
    """The history after all of `trials`, in their order."""
    for trial in trials:
        history = with_trial(history, trial)
    return history


def close(history: History, trial: FinishedTrial) -> Iterator[ClosedRegion]:
    """Regions that `trial`, the last one of `history`, closes. They may overlap earlier ones."""
    if trial.configuration.checkpointing not in history.space.forms or history.is_outgrown(trial):
        return
    match trial.outcome:
        case OutOfMemory():
            yield from _by_out_of_memory(history, trial)
            yield from _by_prediction(history, trial)
        case Measured():
            if history.usable_bytes is not None and _needed_bytes(history, trial) > (
                history.usable_bytes
            ):
                yield from _by_out_of_memory(history, trial)
            yield from _by_prediction(history, trial)
            yield from _by_failure(history, trial)
        case Failed():
            yield from _by_failure(history, trial)
        case _:
            pass


def same_cause(first: str, second: str) -> bool:
    """Whether two sentences name the same fault; the figures in them may differ."""
    return _without_figures(first) == _without_figures(second)


def _without_figures(cause: str) -> str:
    return re.sub(r"\d+(?:\.\d+)?", "#", cause)


def _region(
    history: History,
    trial: FinishedTrial,
    *,
    what: str,
    reason: str,
    by_memory: bool,
    holds: Callable[[Configuration], bool],
) -> ClosedRegion:
    return ClosedRegion(
        what=what,
        reason=reason,
        trial=trial.number,
        by_memory=by_memory,
        configurations=tuple(
            c
            for c in history.space.candidates
            if holds(c) and all(t.may_be_repeated for t in history.of(c))
        ),
    )


def _by_out_of_memory(history: History, trial: FinishedTrial) -> Iterator[ClosedRegion]:
    if not _is_evidence(history, trial):
        return
    ran_out = trial.configuration
    if isinstance(trial.outcome, OutOfMemory):
        reason = f"trial {trial.number} ran out of memory at {ran_out}: {trial.outcome.cause}"
    else:
        reason = (
            f"trial {trial.number} needed {format_bytes(_needed_bytes(history, trial))} at "
            f"{ran_out}, and less may be filled now"
        )
    form = history.form_index(ran_out)

    def needs_as_much(candidate: Configuration) -> bool:
        spares_gradients = (
            history.gradient_bytes > 0
            and candidate.accumulation_steps == 1 < ran_out.accumulation_steps
        )
        return (
            candidate.micro_batch_size >= ran_out.micro_batch_size
            and history.form_index(candidate) <= form
            and not spares_gradients
        )

    yield _region(
        history,
        trial,
        what=_from_size_on(ran_out.micro_batch_size, ran_out, form),
        reason=reason,
        by_memory=True,
        holds=needs_as_much,
    )


def _is_evidence(history: History, trial: FinishedTrial) -> bool:
    """Whether a trial that ran out of memory closes anything.

    A killed process is evidence only where a second one was killed at the same configuration or
    at one that needs at least as much.
    """
    if not trial.is_uncertain:
        return True
    size, form = trial.configuration.micro_batch_size, history.form_index(trial.configuration)
    return any(
        other is not trial
        and other.is_uncertain
        and not history.is_outgrown(other)
        and other.configuration.checkpointing in history.space.forms
        and other.configuration.micro_batch_size >= size
        and history.form_index(other.configuration) <= form
        for other in history.trials
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """Through a measured point and a larger one whose need is known, or known to be no less."""

    size: int
    """Micro-batch size of the larger point; the line is a lower bound beyond it."""
    num_bytes: int
    bytes_per_sample: float
    trials: tuple[int, int]

    def at(self, size: int) -> float:
        return self.num_bytes + self.bytes_per_sample * (size - self.size)


def _lines(history: History, form: Checkpointing) -> list[_Line]:
    """Lines under one form, for steps of more than one micro-batch.

    Steps of a single micro-batch stand on another curve, which lies up to the gradients lower.
    """
    measured: dict[int, FinishedTrial] = {}
    ran_out: dict[int, FinishedTrial] = {}
    for trial in history.trials:
        configuration = trial.configuration
        if configuration.checkpointing == form and configuration.accumulation_steps > 1:
            if isinstance(trial.outcome, Measured) and trial.is_search:
                measured[configuration.micro_batch_size] = trial
            elif (
                isinstance(trial.outcome, OutOfMemory)
                and trial.outcome.is_certain
                and not history.is_outgrown(trial)
            ):
                ran_out[configuration.micro_batch_size] = trial
    sizes = sorted(measured)
    pairs = [(measured[sizes[-2]], measured[sizes[-1]])] if len(sizes) > 1 else []
    if sizes and (too_large := [size for size in ran_out if size > sizes[-1]]):
        pairs.append((measured[sizes[-1]], ran_out[min(too_large)]))
    lines = []
    for near, far in pairs:
        size = far.configuration.micro_batch_size
        rise = _needed_bytes(history, far) - _needed_bytes(history, near)
        run = size - near.configuration.micro_batch_size
        lines.append(
            _Line(size, _needed_bytes(history, far), rise / run, (near.number, far.number))
        )
    return lines


def _needed_bytes(history: History, trial: FinishedTrial) -> int:
    """What a trial needed; where it ran out, what it needed at least."""
    if isinstance(trial.outcome, Measured):
        return trial.outcome.memory.total_bytes
    assert isinstance(trial.outcome, OutOfMemory)
    limit_bytes = trial.outcome.limit_bytes or history.usable_bytes or 0
    return max(trial.outcome.needed_at_least_bytes or 0, limit_bytes)


def _by_prediction(history: History, trial: FinishedTrial) -> Iterator[ClosedRegion]:
    usable_bytes = history.usable_bytes
    if usable_bytes is None or history.need(trial.configuration) is not None:
        # What is known of every size needs no line through two of them.
        return
    form = history.form_index(trial.configuration)
    for line in _lines(history, trial.configuration.checkpointing):

        def needed_bytes(candidate: Configuration, line: _Line = line) -> float:
            spared = history.gradient_bytes if candidate.accumulation_steps == 1 else 0
            return line.at(candidate.micro_batch_size) - spared

        above = {
            c
            for c in history.space.candidates
            if c.micro_batch_size > line.size
            and history.form_index(c) <= form
            and needed_bytes(c) > usable_bytes * (1 + PREDICTION_MARGIN)
        }
        if above:
            smallest = min(above, key=lambda c: c.micro_batch_size)
            yield _region(
                history,
                trial,
                what=_from_size_on(smallest.micro_batch_size, trial.configuration, form),
                reason=f"predicted to need at least {format_bytes(needed_bytes(smallest))} by the "
                f"line through trials {line.trials[0]} and {line.trials[1]}, where "
                f"{format_bytes(usable_bytes)} may be filled",
                by_memory=True,
                holds=above.__contains__,
            )


def _from_size_on(size: int, configuration: Configuration, form: int) -> str:
    more = " or what keeps more memory" if form > 0 else ""
    return f"micro-batch size {size} and larger with {configuration.checkpointing}{more}"


def _by_failure(history: History, trial: FinishedTrial) -> Iterator[ClosedRegion]:
    """What the failures close, now that one more trial ended."""
    for form in history.space.forms:
        failures = [
            (t.configuration.micro_batch_size, t.outcome.cause)
            for t in history.trials
            if isinstance(t.outcome, Failed)
            and not t.is_killed
            and t.configuration.checkpointing == form
        ]
        working = [
            t.configuration.micro_batch_size
            for t in history.measured
            if t.configuration.checkpointing == form
        ]
        if failures and working:
            yield from _sizes_that_fail(history, trial, form, failures, working)
        elif len(failures) >= 2 and history.measured:
            cause = failures[-1][1]
            if sum(same_cause(cause, other) for _, other in failures) >= 2:
                yield _region(
                    history,
                    trial,
                    what=str(form),
                    reason=f"it failed twice, and works without: {cause}",
                    by_memory=False,
                    holds=partial(_has_form, form),
                )


def _has_form(form: Checkpointing, candidate: Configuration) -> bool:
    return candidate.checkpointing == form


def _sizes_that_fail(
    history: History,
    trial: FinishedTrial,
    form: Checkpointing,
    failures: list[tuple[int, str]],
    working: list[int],
) -> Iterator[ClosedRegion]:
    """Larger sizes fail as well; two failures alike leave only what is known to work."""
    above = [(size, cause) for size, cause in failures if size > min(working)]
    if not above:
        return
    smallest, cause = min(above)
    largest_working = max(size for size in working if size < smallest)
    is_repeated = sum(same_cause(cause, other) for _, other in above) >= 2
    first_closed = largest_working + 1 if is_repeated else smallest
    yield _region(
        history,
        trial,
        what=f"micro-batch sizes above {first_closed - 1} with {form}",
        reason=f"micro-batch size {largest_working} works and {smallest} fails: {cause}",
        by_memory=False,
        holds=lambda c: c.checkpointing == form and c.micro_batch_size >= first_closed,
    )
