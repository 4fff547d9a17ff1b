"""An answer, or the want of one, as rows for the screen, fitted to a width."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from textual.content import Content

from autotune.display import wording
from autotune.display.output import one_line
from autotune.events import Confirmed
from autotune.view import RunView
from tui import bindings, words
from tui.answer import verdict, without
from tui.answer.changes import settings
from tui.answer.read import Answer, Offer
from tui.run_now import RunNow
from tui.widgets.rows import columns, hanging, mark, padded


def head(answer: Answer, confirmed: Confirmed | None, width: int) -> Iterator[Content]:
    """How much faster, how sure, how much memory, the same learning or not."""
    rows = (
        ("speed", verdict.speed(answer, confirmed)),
        ("memory", verdict.memory(answer.measured, answer.memory_limit_bytes)),
        ("learning", verdict.learning(answer)),
    )
    for name, text in rows:
        yield from hanging(f"  {name:<10}", one_line(text), width)


def changes(answer: Answer, taken: Offer, width: int) -> Iterator[Content]:
    """Every setting that is different with what is taken, and what stays."""
    everything = list(settings(answer.baseline.configuration, taken.configuration))
    changed = [one for one in everything if one.is_change]
    if changed:
        name_cells = max(len(one.name) for one in changed)
        before_cells = max(len(one.before) for one in changed)
        for one in changed:
            yield Content.assemble(
                f"  {padded(one.name, name_cells)}  ",
                (padded(one.before, before_cells, right=True), "$text-muted"),
                " → ",
                (one.after, "bold $text-success"),
            )
    elif answer.evaluation is None:
        yield Content("  nothing: it is what you have now")
    else:
        yield Content("  nothing of training: it is what you have now")
    if answer.evaluation is not None:
        size = answer.evaluation.per_device_eval_batch_size
        row = f"per_device_eval_batch_size → {size}, which touches evaluation only"
        yield from hanging("  ", row, width)
    same = [f"{one.name} {one.before}" for one in everything if not one.is_change]
    if same:
        yield from hanging("  the same  ", ", ".join(same), width, tone="$text-muted")


def evidence(answer: Answer, view: RunView, width: int) -> Iterator[Content]:
    """What was measured again and how, and the reasons in the run's own words."""
    drawn = columns(list(verdict.evidence(view)), width - 2, right=(2,))
    yield from (Content(f"  {row}") for row in drawn)
    yield from hanging("  ", verdict.sureness(view.confirmed), width, tone="$text-muted")
    for reason in answer.reasons:
        yield from hanging("  - ", one_line(reason), width)


def limits(answer: Answer, view: RunView, width: int) -> Iterator[Content]:
    """What may be tried besides, what nobody looked at, and what the run warned of."""
    for text in answer.also_consider:
        yield from hanging("  also consider  ", one_line(text), width)
    for text in answer.not_covered:
        yield from hanging("  not covered    ", one_line(text), width)
    for warning in view.warnings:
        text = one_line(f"{warning.cause} {warning.remedy or ''}")
        yield from hanging(Content.assemble("  ", mark("note"), " warning      "), text, width)


TAKEN, OFFERED = "●", "○"
"""What stands before an offer that is taken, and before one that may be."""


def offer(one: Offer, answer: Answer, view: RunView, width: int, *, is_taken: bool) -> Content:
    """One row of the list of what may be taken."""
    sign = TAKEN if is_taken else OFFERED
    against = verdict.against(one, answer, view) if one.kind is not None else "recommended here"
    row = f"{sign} {padded(one.title, 24)} {one.configuration}: {against}"
    if cell_len(row) > width:
        row = row.replace(" speed,", ",").removesuffix(" memory")
    return Content(padded(row, width).rstrip())


def title_without(now: RunNow) -> str:
    """What stands above the page of a run that has no answer."""
    if now.directory is None:
        return "no run"
    if _goes_on(now):
        return "no answer yet: what is missing"
    return f"no answer: {now.state}"


def no_answer(now: RunNow, width: int) -> list[Content]:
    """What is missing of a run that goes on, or why one that ended has no answer."""
    if now.directory is None:
        return hanging("  ", words.no_trials(now), width)
    rows = list(unfinished(now, width) if _goes_on(now) else ended(now, width))
    return rows or [Content("  Nothing has happened yet.")]


def trouble(now: RunNow, width: int) -> Iterator[Content]:
    """What is wrong with the run's directory, above an answer that could be read all the same."""
    if now.trouble is not None:
        top = Content.assemble("  ", mark("wrong"), " ")
        yield from hanging(top, one_line(f"{now.trouble.cause} {now.trouble.remedy}"), width)


def _goes_on(now: RunNow) -> bool:
    """Whether an answer may still come."""
    return now.form in ("running", "empty")


def unfinished(now: RunNow, width: int) -> Iterator[Content]:
    """What is missing before there is an answer, and what would be said now."""
    for station in without.stations(now.view, is_alive=now.is_alive):
        top = Content.assemble("  ", mark(station.mark), f" {station.what:<18}")
        yield from hanging(top, station.text, width)
    leading = without.leading(now.view)
    if leading:
        yield Content("")
        yield from hanging("  leads so far  ", leading, width)


def ended(now: RunNow, width: int) -> Iterator[Content]:
    """Why a run that ended has no answer: cause, remedy, counts, the nearest miss."""
    cause, remedy = words.what_ended_it(now)
    if cause:
        top = Content.assemble("  ", mark("wrong"), " ")
        yield from hanging(top, cause, width, tone="bold")
        yield from hanging("    ", remedy, width)
        if words.how_to_go_on(now):
            yield from hanging(
                "    ",
                f"{bindings.shown('export.go_on')} goes on with it from here, "
                f"{bindings.shown('export.copy')} copies the command.",
                width,
                tone="$text-muted",
            )
        yield Content("")
    counted = without.counts(now.view)
    for count in counted:
        word = wording.WORDS[count.kind]
        glyph, tone = wording.GLYPHS[count.kind], words.TONES.get(count.kind, "")
        top = Content.assemble("  ", (glyph, tone), f" {count.number:>3} {word:<14} ")
        example = "" if count.kind == "measured" else count.example
        if count.is_of_repeats:
            example = f"in confirmation: {example}" if example else "in confirmation"
        yield from hanging(top, example, width, tone="$text-muted")
    nearest = without.nearest(now.view)
    if nearest:
        yield from hanging("  nearest to fit  ", nearest, width)
    failure = without.first_failure(now)
    if failure is not None:
        yield from hanging("  first failure   ", f"{failure[0]} {failure[1]}", width)
    if now.view.recommendation is None and now.state != "nothing feasible":
        for station in without.stations(now.view, is_alive=False):
            top = Content.assemble("  ", mark(station.mark), f" {station.what:<18}")
            yield from hanging(top, station.text, width)
        leading = without.leading(now.view)
        if leading:
            yield from hanging("  led so far    ", leading, width)
    for text in without.ruled_out(now.view):
        yield from hanging("  ", text, width, tone="$text-muted")
