"""A run without an answer: what is missing of one that goes on, why one that ended has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autotune.configuration import Configuration
from autotune.display import wording
from autotune.display.output import one_line
from autotune.outcome import Failed, OutOfMemory
from autotune.units import counted, format_bytes, format_change, format_rate
from autotune.view import RunView
from tui.run_now import RunNow
from tui.trials import readings, story

Progress: TypeAlias = Literal["ok", "asking", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """One thing that must have happened before there is an answer."""

    mark: Progress
    what: str
    text: str


def stations(view: RunView, *, is_alive: bool) -> Iterator[Station]:
    """What is done, what is going on and what is missing, in order."""
    now: Progress = "asking" if is_alive else "open"
    probed = view.machine is not None
    is_probing = view.probing is not None and is_alive
    probing = f"probing {one_line(view.probing.probe)}" if view.probing and is_probing else ""
    yield Station(
        mark="ok" if probed else now,
        what="machine probed",
        text=wording.machine(view.machine.machine) if view.machine else probing,
    )
    yield Station(
        mark="ok" if view.workload is not None else now if probed else "open",
        what="job loaded",
        text=wording.workload(view.workload.facts) if view.workload is not None else "",
    )
    planned = view.space is not None
    yield Station(
        mark="ok" if planned else now if view.workload is not None else "open",
        what="splitting checked",
        text=f"{counted(len(view.space.candidates), 'configuration')} to choose from"
        if view.space
        else "",
    )
    ended = view.search_ended
    trials = counted(view.num_search_trials, "trial")
    of = f" of at most {view.budget_trials}" if view.budget_trials else ""
    yield Station(
        mark="ok" if ended is not None else now if planned else "open",
        what="search",
        text=f"{trials}: {one_line(ended.reason)}" if ended else f"{trials}{of}" if planned else "",
    )
    confirmed = view.confirmed
    yield Station(
        mark="ok" if confirmed is not None else now if ended is not None else "open",
        what="confirmation",
        text=wording.confirmation(confirmed, view)
        if confirmed is not None
        else _repeats(view) or "best and baseline again, interleaved",
    )
    made = view.recommendation is not None
    yield Station(
        mark="ok" if made else now if confirmed is not None else "open",
        what="recommendation",
        text="",
    )
    yield Station(
        mark="ok" if view.exported is not None else now if made else "open",
        what="files",
        text=one_line(view.exported.directory) if view.exported is not None else "",
    )


def _repeats(view: RunView) -> str:
    """What became of the repeats so far; empty before the first ended.

    A run that was stopped and goes on confirms anew: what ended otherwise has measured nothing.
    """
    ended = Counter(t.state for t in view.trials if t.is_repeat and t.state != "running")
    num_measured = ended.pop("measured", 0)
    others = ", ".join(f"{num} {wording.WORDS[kind]}" for kind, num in ended.most_common())
    if not num_measured:
        return f"nothing measured so far: {others}" if others else ""
    measured = f"{counted(num_measured, 'measurement')} so far"
    return f"{measured}, {others}" if others else measured


def leading(view: RunView) -> str:
    """What would be recommended if the search were right already; empty before the first trial."""
    best = readings.best(view)
    if best is None:
        return ""
    ratio = readings.gain(best, view)
    change = "" if ratio is None else f", {format_change(ratio)} vs baseline"
    confirmed = view.confirmed
    sure = readings.word(confirmed) if confirmed else "one measurement, not confirmed"
    return (
        f"#{best.number} {best.configuration}: {format_rate(readings.rate(best, view))} samples/s"
        f"{change}; {sure}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many trials ended in one way."""

    kind: str
    number: int
    example: str
    """What one of them said."""
    is_of_repeats: bool = False


def counts(view: RunView) -> tuple[Count, ...]:
    """How the trials of the search ended, the most frequent way first; then the repeats."""
    found = []
    for is_repeat in (False, True):
        ended = [t.outcome for t in view.trials if t.outcome and t.is_repeat == is_repeat]
        for kind, number in Counter(outcome.kind for outcome in ended).most_common():
            one = next(outcome for outcome in ended if outcome.kind == kind)
            found.append(
                Count(
                    kind=kind, number=number, example=wording.outcome(one), is_of_repeats=is_repeat
                )
            )
    return tuple(found)


def ruled_out(view: RunView) -> Iterator[str]:
    """What was never tried, and why."""
    for closed in view.closed:
        yield f"{closed.num_removed} ruled out: {one_line(closed.what)}, {one_line(closed.reason)}"
    for out in view.space.ruled_out if view.space is not None else ():
        yield f"ruled out: {one_line(str(out.get('what')))}, {one_line(str(out.get('reason')))}"


def nearest(view: RunView) -> str:
    """The trial that missed the limit by least; empty where none is known to have missed it."""
    needs: list[tuple[int, Configuration, int]] = []
    for trial in view.trials:
        outcome = trial.outcome
        if isinstance(outcome, OutOfMemory) and outcome.needed_at_least_bytes is not None:
            needs.append((outcome.needed_at_least_bytes, trial.configuration, trial.number))
    if not needs:
        return ""
    need, configuration, number = min(needs, key=lambda found: found[0])
    limit = view.machine.usable_bytes if view.machine is not None else None
    allowed = f", {format_bytes(limit)} may be used" if limit is not None else ""
    return f"#{number} {configuration} needs {format_bytes(need)} or more{allowed}"


def first_failure(now: RunNow) -> tuple[str, str] | None:
    """Cause and remedy of the first trial that failed; None where none did."""
    for trial in now.view.trials:
        if isinstance(trial.outcome, Failed):
            remedy = trial.outcome.remedy or f"{story.command_again(trial, now)} repeats it."
            return f"#{trial.number}: {one_line(trial.outcome.cause)}", one_line(remedy)
    return None
