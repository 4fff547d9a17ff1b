"""One trial in sentences: what happened, what it means, where time and memory went."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from textual.content import Content

from autotune.configuration import Checkpointing, Configuration
from autotune.display import wording
from autotune.display.output import one_line
from autotune.events import Document
from autotune.outcome import (
    Exchange,
    Failed,
    Measured,
    Outcome,
    OutOfMemory,
    Phases,
    Stopped,
    TimedOut,
)
from autotune.units import format_bytes, format_change, format_rate, format_seconds
from autotune.view import RunView, TrialView
from tui import words
from tui.pictures.bars import bar, sparkline
from tui.run_now import RunNow

_BAR_CELLS = 30
_NAME_CELLS = 11
_FIGURE_CELLS = 28
"""What is kept free beside a bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the story under a title of its own."""

    title: str
    lines: tuple[Content, ...]


def sections(trial: TrialView, now: RunNow, width: int) -> list[Section]:
    """The story of a trial, what matters most first; bars are as long as the width allows."""
    cells = max(6, min(_BAR_CELLS, width - _NAME_CELLS - _FIGURE_CELLS))
    parts = [
        Section(title="what happened", lines=tuple(_what_happened(trial, now))),
        Section(title="what it means", lines=tuple(_what_it_means(trial, now.view))),
    ]
    measured = trial.measured
    if measured is not None:
        parts += [
            Section(
                title="memory", lines=tuple(_memory(measured, trial.predicted, now.view, cells))
            ),
            Section(
                title=f"a step, {format_seconds(measured.speed.step_s)}",
                lines=tuple(_step(measured, cells)),
            ),
        ]
    baseline = now.view.baseline
    if baseline is not None and baseline.number != trial.number:
        parts.append(
            Section(
                title=f"changed from the baseline, #{baseline.number}",
                lines=tuple(changes(baseline.configuration, trial.configuration))
                or (Content("nothing"),),
            )
        )
    parts.append(Section(title="again, alone", lines=tuple(_again(trial, now))))
    return [part for part in parts if part.lines]


def _what_happened(trial: TrialView, now: RunNow) -> Iterator[Content]:
    outcome = trial.outcome
    if trial.is_lost:
        yield Content.styled(f"Lost: {words.lost(now)}.", words.TONES["lost"])
        yield Content("A run that goes on tries it again, if it is still of use.")
    elif outcome is None:
        progress = now.view.progress
        is_known = progress is not None and progress.number == trial.number
        where = f": {wording.progress(progress)}" if progress is not None and is_known else "."
        yield Content(f"It runs{where}")
    else:
        yield Content.styled(_sentence(outcome), words.TONES[outcome.kind])
        if isinstance(outcome, Failed) and outcome.remedy:
            yield Content(one_line(outcome.remedy))
        if isinstance(outcome, OutOfMemory) and not outcome.is_certain:
            yield Content("The process was killed, which suggests memory and does not prove it.")
    if trial.why:
        yield Content(f"Tried because: {one_line(trial.why)}")
    if trial.wall_s is not None:
        overhead = (
            f", {format_seconds(trial.overhead_s)} of it beside its own steps"
            if trial.overhead_s
            else ""
        )
        yield Content(f"It took {format_seconds(trial.wall_s)}{overhead}.")
    if trial.origin is not None:
        origin = trial.origin
        yield Content(
            f"Run on {one_line(origin.host)} by its run {one_line(origin.run)}, "
            f"as #{origin.number} there."
        )


def _sentence(outcome: Outcome) -> str:
    match outcome:
        case Measured():
            low, high = outcome.samples_per_s_ci95
            tokens = outcome.speed.tokens_per_s
            per_token = f", {format_rate(tokens)} tokens/s" if tokens else ""
            return (
                f"Measured {format_rate(outcome.samples_per_s)} samples/s "
                f"(95 %: {format_rate(low)} to {format_rate(high)}){per_token}."
            )
        case OutOfMemory():
            where = "of the device" if outcome.where == "device" else "of the host"
            needed = outcome.needed_at_least_bytes
            needs = f" It needs at least {format_bytes(needed)}." if needed is not None else ""
            return f"Out of memory {where}: {one_line(outcome.cause)}.{needs}".replace("..", ".")
        case Failed():
            return f"Failed: {one_line(outcome.cause)}"
        case TimedOut():
            return f"Ended after {format_seconds(outcome.limit_s)}: {one_line(outcome.cause)}"
        case Stopped():
            return f"Stopped: {one_line(outcome.cause)}"


def _what_it_means(trial: TrialView, view: RunView) -> Iterator[Content]:
    ratio = wording.speedup(trial, view)
    if trial.purpose == "baseline":
        yield Content("It is the baseline: the configuration of now.")
    elif ratio is not None:
        yield Content(f"{format_change(ratio)} against the baseline's trial, before confirmation.")
    confirmed = view.confirmed
    if confirmed is not None and trial.number in (confirmed.number, confirmed.baseline_number):
        told = wording.confirmation(confirmed)
        yield Content(f"{told[:1].upper()}{told[1:]}.")
    elif view.best is not None and view.best.number == trial.number:
        yield Content("It is the best so far.")
    for closed in view.closed:
        if closed.trial == trial.number:
            yield Content(
                f"Ruled out since then: {one_line(closed.what)}, {one_line(closed.reason)} "
                f"({closed.num_removed} fewer)."
            )


def _memory(
    measured: Measured, predicted: Document | None, view: RunView, cells: int
) -> Iterator[Content]:
    use = measured.memory
    limit = view.machine.memory_limit_bytes if view.machine else None
    most = max(limit or 0, use.total_bytes, 1)
    tensors = "tensors" if use.reserved_bytes == use.allocated_bytes else "reserved"
    of = f" of {format_bytes(limit)}" if limit else ""
    for name, num_bytes, beside in (
        (tensors, use.reserved_bytes, ""),
        ("process", use.outside_bytes, ""),
        ("together", use.total_bytes, of),
    ):
        yield _bar_line(name, num_bytes / most, cells, f"{format_bytes(num_bytes)}{beside}")
    for name, value in sorted((predicted or {}).items()):
        if isinstance(value, int | float) and not isinstance(value, bool):
            told = format_bytes(value) if name.endswith("_bytes") else f"{value:g}"
            title = name.removesuffix("_bytes").replace("_", " ")
            yield Content.styled(
                f"{'predicted':<{_NAME_CELLS}}{title} {told}, before the trial ran", "$text-muted"
            )
    yield Content.styled(f"{'counted':<{_NAME_CELLS}}{one_line(use.method)}", "$text-muted")


def _step(measured: Measured, cells: int) -> Iterator[Content]:
    if measured.phases is not None:
        yield from _phases(measured.phases, cells)
    if measured.exchange is not None:
        yield from _exchange(measured.exchange, cells)
    times = measured.speed.step_times_s
    left_out = measured.speed.num_warmup_steps
    note = f", {left_out} before them not counted" if left_out else ""
    yield Content(
        f"{'steps':<{_NAME_CELLS}}{sparkline(times)} {format_seconds(min(times))} to "
        f"{format_seconds(max(times))}, n={len(times)}{note}"
    )
    losses = [loss for loss in measured.speed.losses if loss is not None]
    if len(losses) > 1:
        yield Content(
            f"{'loss':<{_NAME_CELLS}}{sparkline(losses)} {losses[0]:.4g} → {losses[-1]:.4g}"
        )


def _phases(phases: Phases, cells: int) -> Iterator[Content]:
    parts = (
        ("data", phases.data_s),
        ("forward", phases.forward_s),
        ("backward", phases.backward_s),
        ("optimizer", phases.optimizer_s),
    )
    total = sum(seconds for _, seconds in parts) or 1.0
    for name, seconds in parts:
        part = seconds / total
        yield _bar_line(name, part, cells, f"{part * 100:3.0f} %  {format_seconds(seconds)}")


def _exchange(exchange: Exchange, cells: int) -> Iterator[Content]:
    part = exchange.exposed_s / exchange.ddp_step_s if exchange.ddp_step_s else 0.0
    waits = f"{part * 100:3.0f} %  {format_seconds(exchange.exposed_s)}, waiting for other ranks"
    yield _bar_line("exchange", part, cells, waits)
    yield Content(
        f"{'averaging':<{_NAME_CELLS}}{format_seconds(exchange.averaging_s)} for "
        f"{format_bytes(exchange.averaging_bytes)}"
    )


def _bar_line(name: str, part: float, cells: int, figures: str) -> Content:
    return Content.assemble(
        f"{name:<{_NAME_CELLS}}", (bar(part, cells), "$text-primary"), f" {figures}"
    )


def settings(configuration: Configuration) -> dict[str, str]:
    """A configuration under the names of Hugging Face."""
    form = configuration.checkpointing
    return {
        "per_device_train_batch_size": str(configuration.micro_batch_size),
        "gradient_accumulation_steps": str(configuration.accumulation_steps),
        "processes": str(configuration.world_size),
        "checkpointing": _spelled_out(form),
        "local_sgd_steps": str(configuration.local_sgd_steps),
        "global batch size": str(configuration.global_batch_size),
    }


def _spelled_out(form: Checkpointing) -> str:
    return str(form).removeprefix("checkpointing ") if form.is_on else "none"


def changes(before: Configuration, now: Configuration) -> Iterator[Content]:
    """What differs between two configurations, one line each."""
    old = settings(before)
    for name, value in settings(now).items():
        if old[name] != value:
            yield Content(f"{name:<31}{old[name]} → {value}")


def command_again(trial: TrialView, now: RunNow) -> str:
    """The command that runs a trial again, alone."""
    return shlex.join(["autotune", "trial", words.how_to_call(now), str(trial.number)])


def _again(trial: TrialView, now: RunNow) -> Iterator[Content]:
    if trial.state != "running" and trial.origin is None:
        yield Content(command_again(trial, now))
    if now.directory is not None and trial.origin is None:
        yield Content(f"files  {now.directory.trial(trial.number)}")


def configuration_lines(trial: TrialView, now: RunNow) -> list[Content]:
    """The second tab: every setting, and what the trial ran under."""
    lines = [Content(f"{name:<31}{value}") for name, value in settings(trial.configuration).items()]
    lines += [Content(""), Content(f"{'purpose':<31}{trial.purpose}")]
    loaded = now.view.workload
    if loaded is not None:
        lines += [Content(f"{'device':<31}{one_line(loaded.device)}"), Content("")]
        lines += [
            Content(f"{one_line(name):<31}{one_line(value)}")
            for name, value in sorted(loaded.environment.items())
        ]
    return lines
