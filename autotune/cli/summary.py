"""Runs in words: what is printed for people on stdout."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pydantic import ValidationError

from autotune import sureness
from autotune.cli import documents
from autotune.configuration import Configuration
from autotune.display import wording
from autotune.display.output import one_line
from autotune.errors import JournalError
from autotune.events import Confirmed
from autotune.export.document import Answer, RecommendationDocument, is_of_search_alone, read
from autotune.run_directory import RunDirectory
from autotune.units import (
    counted,
    format_bytes,
    format_change,
    format_rate,
    format_seconds,
)
from autotune.view import RunView

INDENT = "  "


def recommendation(run: RunDirectory, view: RunView, *, next_steps: Sequence[str] = ()) -> str:
    """The answer of a run, its evidence and where its files are.

    Raises:
        JournalError: The journal holds a recommendation that cannot be read.
    """
    document = _read(run, view)
    if document is None:
        return ""
    answer = document.recommendation
    lines = [
        f"Run {one_line(view.run)} recommends {spelled_out(answer.configuration)}",
        *_figures(answer, view.confirmed),
    ]
    lines += section("Why", answer.reasons)
    lines += section(
        "Instead",
        [
            f"{other.kind}: {other.configuration}, "
            f"{format_rate(other.measured.samples_per_s)} samples/s"
            f"{_when(document, other.configuration)}, "
            f"{format_bytes(other.measured.memory.total_bytes)}"
            for other in answer.alternatives
        ],
    )
    lines += section("Also consider (untested)", answer.also_consider)
    lines += section("Not covered by this evidence", answer.not_covered)
    lines += warnings(view)
    lines += files(view)
    lines += section("Next", next_steps, bullet="")
    return "\n".join(lines)


def _when(document: RecommendationDocument, configuration: Configuration) -> str:
    """When a rate was measured, where that was not beside the recommended one's."""
    is_alone = is_of_search_alone(document, configuration)
    return " (once, before confirmation)" if is_alone else ""


def spelled_out(configuration: Configuration) -> str:
    """A configuration in whole words, for those who see one for the first time."""
    steps = configuration.accumulation_steps
    parts = [
        f"micro-batch size {configuration.micro_batch_size}",
        f"{steps} accumulation step{'s' if steps > 1 else ''}",
        str(configuration.checkpointing),
    ]
    if configuration.world_size > 1:
        parts.append(f"{configuration.world_size} ranks")
    if configuration.local_sgd_steps > 1:
        parts.append(f"local SGD every {configuration.local_sgd_steps} steps")
    return ", ".join(parts)


def _read(run: RunDirectory, view: RunView) -> RecommendationDocument | None:
    if view.recommendation is None:
        return None
    try:
        return read(view.recommendation)
    except ValidationError as error:
        fault = error.errors()[0]
        raise JournalError(
            f"The recommendation in {run.journal} cannot be read: "
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}.",
            "`autotune show --json` prints it as it stands.",
        ) from error


def _figures(answer: Answer, confirmed: Confirmed | None) -> list[str]:
    measured = answer.measured
    low, high = measured.samples_per_s_ci95
    is_baseline = answer.baseline.configuration == answer.configuration
    is_open = is_baseline and confirmed is not None and not sureness.is_settled(confirmed)
    rows = [
        (
            "speed",
            f"{format_rate(measured.samples_per_s)} samples/s "
            f"(95 %: {format_rate(low)} to {format_rate(high)}), "
            f"a step takes {format_seconds(measured.step_s)}{', not settled' if is_open else ''}",
        )
    ]
    if is_baseline:
        rows.append(("change", "none: it is the configuration you have"))
    elif answer.speedup is not None:
        low, high = answer.speedup.ci95
        settled = confirmed is None or confirmed.settled
        doubt = sureness.doubt(answer.speedup.ci95, settled=settled)
        rows.append(
            (
                "change",
                f"{format_change(answer.speedup.value)} samples/s over "
                f"{answer.baseline.configuration} "
                f"(95 %: {format_change(low)} to {format_change(high)})"
                f"{f', {doubt}' if doubt else ''}",
            )
        )
        efficiency = answer.sample_efficiency
        if efficiency.basis != "not needed":
            useful = format_change(answer.speedup.value * efficiency.value)
            rows.append(
                (
                    "useful",
                    f"{useful} useful samples/s: a sample teaches {100 * efficiency.value:.0f} % "
                    f"of what one of the baseline's does ({efficiency.basis})",
                )
            )
    if answer.evaluation is not None:
        size = answer.evaluation.per_device_eval_batch_size
        rows.append(("eval", f"per_device_eval_batch_size={size}, which touches evaluation only"))
    rows += [
        (
            "memory",
            f"{format_bytes(measured.memory.total_bytes)} of "
            f"{format_bytes(answer.memory_limit_bytes)}",
        ),
        (
            "batch",
            f"{counted(answer.configuration.global_batch_size, 'sample')} per optimizer step",
        ),
    ]
    return ["", *(f"{INDENT}{name:<8}{text}" for name, text in rows)]


def section(title: str, entries: Sequence[str], *, bullet: str = "- ") -> list[str]:
    """A heading with its entries after an empty line; nothing where there are none."""
    if not entries:
        return []
    return ["", title, *(f"{INDENT}{bullet}{one_line(entry)}" for entry in entries)]


def warnings(view: RunView) -> list[str]:
    """What the run warned of."""
    return section(
        "Warnings",
        [f"{w.cause} {w.remedy or ''}" for w in view.warnings],
        bullet="▲ ",
    )


def files(view: RunView) -> list[str]:
    """What was exported, and who has read it back."""
    if view.exported is None:
        return []
    rows = [
        (str(file.get("name", "")), f"read by {file['consumer']}" if file.get("consumer") else "")
        for file in view.exported.files
    ]
    return [
        "",
        f"Files in {one_line(view.exported.directory)}",
        *indented(table([], rows)),
    ]


def trials(view: RunView) -> list[str]:
    """The table of trials, and why some of them have no figures."""
    rows = []
    is_predicted = any(trial.predicted_bytes is not None for trial in view.trials)
    for trial in view.trials:
        ratio = wording.speedup(trial, view)
        measured, need = trial.measured, trial.predicted_bytes
        rows.append(
            (
                str(trial.number),
                wording.state(trial),
                trial.purpose,
                str(trial.configuration),
                format_rate(measured.samples_per_s) if measured else "–",
                format_bytes(measured.memory.total_bytes) if measured else "–",
                *(("–" if need is None else format_bytes(need),) if is_predicted else ()),
                format_seconds(measured.speed.step_s) if measured else "–",
                format_change(ratio) if ratio is not None else "–",
            )
        )
    if not rows:
        return ["", "No trials yet."]
    head = ["#", "state", "purpose", "configuration", "samples/s", "peak", "step", "vs base"]
    if is_predicted:
        head.insert(6, "predicted")
    lines = ["", *table(head, rows, right=(0, *range(4, len(head))))]
    return lines + section(
        "Without figures",
        [
            f"{wording.GLYPHS[trial.state]} #{trial.number} {wording.WORDS[trial.state]}: "
            f"{wording.ending_of(trial)}"
            for trial in view.trials
            if trial.state != "running" and trial.measured is None
        ],
        bullet="",
    )


def ruled_out(view: RunView) -> list[str]:
    """What was never tried, and why."""
    entries = [
        f"{out.get('what')}: {out.get('reason')}"
        for out in (view.space.ruled_out if view.space else ())
    ]
    entries += [f"{c.what}: {c.reason} ({c.num_removed} fewer)" for c in view.closed]
    return section("Ruled out", entries)


def head(run: RunDirectory, view: RunView) -> list[str]:
    """Where a run stands and what it works on."""
    rows = [("run", one_line(run.name)), ("state", documents.state(run, view))]
    if view.machine is not None:
        rows.append(("machine", wording.machine(view.machine.machine)))
        rows.append(
            (
                "memory",
                f"limit {format_bytes(view.machine.memory_limit_bytes)} "
                f"({one_line(view.machine.limit_source)})",
            )
        )
    if view.workload is not None:
        rows.append(("work", wording.workload(view.workload.facts)))
    if view.search_ended is not None:
        rows.append(("search", f"ended: {one_line(view.search_ended.reason)}"))
    if view.confirmed is not None:
        rows.append(("proof", wording.confirmation(view.confirmed, view)))
    if view.ended is not None and view.ended.cause:
        rows.append(("ended", one_line(view.ended.cause)))
    return [f"{name:<9}{text}" for name, text in rows]


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> list[str]:
    """Rows in columns as wide as their widest cell; columns in `right` end flush."""
    everything = [list(head), *map(list, rows)] if head else [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
    return [
        INDENT.join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in everything
    ]


def indented(lines: Sequence[str]) -> list[str]:
    """The lines, moved in."""
    return [f"{INDENT}{line}" for line in lines]


def command(*words: str) -> str:
    """A command line that can be pasted into a shell."""
    return shlex.join(words)
