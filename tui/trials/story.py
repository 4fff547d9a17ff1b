"""One trial in sentences: what happened, what it means, where time and memory went."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from textual.content import Content

from autotune.configuration import Checkpointing, Configuration
from autotune.display import wording
from autotune.display.output import one_line
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
from tui.trials import columns, readings
from tui.trials.predictions import predicted_bytes
from tui.widgets.rows import hanging

_OF_PREDICTIONS = str.maketrans("█▏▎▍▌▋▊▉", "▒░░░▒▒▒▒")
"""A bar of what was predicted is not filled."""
_BAR_CELLS = 30
_NAME_CELLS = 11
_SETTING_CELLS = 31
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
    again = _again_measured(trial, now.view)
    parts.append(
        Section(
            title="memory, of the confirmation" if again is not None else "memory",
            lines=tuple(_memory(trial, now.view, cells)),
        )
    )
    measured = trial.measured
    if measured is not None:
        of = " of the search" if again is not None else ""
        parts.append(
            Section(
                title=f"a step{of}, {format_seconds(measured.speed.step_s)}",
                lines=(*_step_again(trial, now.view), *_step(measured, cells)),
            )
        )
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


def glance(trial: TrialView | None, now: RunNow) -> list[str]:
    """A trial in three rows: number and state, its splitting, what came of it."""
    if trial is None:
        return ["no trial yet"]
    found, ratio = readings.shown(trial, now.view), readings.gain(trial, now.view)
    if found is None:
        progress = now.view.progress
        is_known = progress is not None and progress.number == trial.number
        end = wording.progress(progress) if progress and is_known else wording.ending_of(trial)
    else:
        change = f" {format_change(ratio)}" if ratio is not None else ""
        peak = format_bytes(found.memory.total_bytes)
        end = f"{format_rate(found.samples_per_s)} samples/s{change}, peak {peak}"
    return [f"#{trial.number} {columns.state(trial, now.view)}", str(trial.configuration), end]


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
        again = readings.shown(trial, now.view)
        verdict = now.view.confirmed
        if again is not None and again.is_confirmed and verdict is not None:
            low, high = again.samples_per_s_ci95
            yield Content.styled(
                f"{readings.signed(verdict)}: {format_rate(again.samples_per_s)} samples/s "
                f"(95 %: {format_rate(low)} to {format_rate(high)}).",
                words.TONES[outcome.kind],
            )
            yield Content.styled(f"Before, once: {_sentence(outcome)}", "$text-muted")
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
    found, best = readings.shown(trial, view), readings.best(view)
    is_sure = found is not None and found.is_confirmed
    ratio = readings.gain(trial, view)
    if trial.purpose == "baseline":
        yield Content("It is the baseline: the configuration of now.")
    elif ratio is not None and not is_sure:
        when = "before confirmation" if view.confirmed is None else "by one measurement of each"
        yield Content(f"{format_change(ratio)} against the baseline's trial, {when}.")
    confirmed = view.confirmed
    if confirmed is not None and is_sure:
        told = wording.confirmation(confirmed, view)
        yield Content(f"{told[:1].upper()}{told[1:]}.")
    elif best is not None and best.number == trial.number:
        yield Content("It is the best so far.")
    elif best is not None and confirmed is None and _is_ahead(trial, best, view):
        yield Content(_why_not_best(trial, best))
    for closed in view.closed:
        if closed.trial == trial.number:
            yield Content(
                f"Ruled out since then: {one_line(closed.what)}, {one_line(closed.reason)} "
                f"({closed.num_removed} fewer)."
            )


def _is_ahead(trial: TrialView, best: TrialView, view: RunView) -> bool:
    """Whether a trial that may be chosen has a higher rate than the best one."""
    one, other = trial.measured, best.measured
    if one is None or other is None or trial.is_repeat:
        return False
    usable = view.machine.usable_bytes if view.machine is not None else None
    if usable is not None and one.memory.total_bytes > usable:
        return False
    # What was tried again and did not run is out for that reason.
    later = [t for t in view.trials if t.configuration == trial.configuration and t.outcome]
    return one.samples_per_s > other.samples_per_s and later[-1].number == trial.number


def _why_not_best(trial: TrialView, best: TrialView) -> str:
    """What speaks for the best one though its rate is lower, by how the search compares."""
    lower = f"#{best.number} is best though its rate is lower: "
    if not wording.teach_alike(trial.configuration, best.configuration):
        return f"{lower}what counts is what is learnt per second, compared batch by batch."
    surely = f"{lower}compared batch by batch, #{trial.number} is not surely faster"
    one, other = trial.measured, best.measured
    if one is not None and other is not None and one.memory.total_bytes > other.memory.total_bytes:
        return f"{surely}, and a tie goes to the one that leaves more memory free."
    return f"{surely}."


def _memory(trial: TrialView, view: RunView, cells: int) -> Iterator[Content]:
    found, predicted = readings.shown(trial, view), predicted_bytes(trial, view)
    use = found.memory if found is not None else None
    limit = view.machine.memory_limit_bytes if view.machine else None
    known = (limit, predicted, use.total_bytes if use is not None else None)
    most = max(*(num_bytes or 0 for num_bytes in known), 1)
    of = f" of {format_bytes(limit)}" if limit else ""
    if use is not None:
        tensors = "tensors" if use.reserved_bytes == use.allocated_bytes else "reserved"
        for name, num_bytes, beside in (
            (tensors, use.reserved_bytes, ""),
            ("process", use.outside_bytes, ""),
            ("measured", use.total_bytes, of),
        ):
            yield _bar_line(name, num_bytes / most, cells, f"{format_bytes(num_bytes)}{beside}")
    if predicted is not None:
        against = f", {_missed(predicted, use.total_bytes)}" if use is not None else of
        figures = f"({format_bytes(predicted)}){against}"
        yield _bar_line("predicted", predicted / most, cells, figures, is_predicted=True)
    if use is not None:
        yield Content.styled(f"{'counted':<{_NAME_CELLS}}{one_line(use.method)}", "$text-muted")


def _missed(predicted: int, measured: int) -> str:
    """How far a prediction was off."""
    off = predicted / max(1, measured)
    if abs(off - 1) < 0.0005:
        return "as measured"
    return f"{format_change(off).lstrip('+−')} too {'much' if off > 1 else 'little'}"


def _again_measured(trial: TrialView, view: RunView) -> readings.Shown | None:
    """What the confirmation measured of a trial of the search; None where it did not."""
    found = readings.shown(trial, view)
    return found if found is not None and found.is_confirmed else None


def _step_again(trial: TrialView, view: RunView) -> Iterator[Content]:
    """What a step took in the confirmation, which the table shows and the rest is not about."""
    again, confirmed = _again_measured(trial, view), view.confirmed
    if again is None or confirmed is None or again.samples_per_s <= 0:
        return
    step_s = trial.configuration.global_batch_size / again.samples_per_s
    yield Content(
        f"{'later':<{_NAME_CELLS}}{format_seconds(step_s)} a step, {readings.signed(confirmed)}"
    )


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
    yield Content.styled(
        f"{'together':<{_NAME_CELLS}}{format_seconds(total)}, timed in steps of their own",
        "$text-muted",
    )


def _exchange(exchange: Exchange, cells: int) -> Iterator[Content]:
    part = exchange.exposed_s / exchange.ddp_step_s if exchange.ddp_step_s else 0.0
    waits = f"{part * 100:3.0f} %  {format_seconds(exchange.exposed_s)}, waiting for other ranks"
    yield _bar_line("exchange", part, cells, waits)
    yield Content(
        f"{'averaging':<{_NAME_CELLS}}{format_seconds(exchange.averaging_s)} for "
        f"{format_bytes(exchange.averaging_bytes)}"
    )


def _bar_line(
    name: str, part: float, cells: int, figures: str, *, is_predicted: bool = False
) -> Content:
    if is_predicted:
        drawn = bar(part, cells).translate(_OF_PREDICTIONS)
        return Content.styled(f"{name:<{_NAME_CELLS}}{drawn} {figures}", "$text-muted italic")
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


def configuration_lines(trial: TrialView, now: RunNow, width: int) -> list[Content]:
    """The second tab: every setting, and what the trial ran under."""
    cells = min(_SETTING_CELLS, max(12, width * 2 // 3))

    def row(name: str, value: str) -> list[Content]:
        return hanging(f"{name:<{cells}}", value, width)

    lines = [
        one for name, value in settings(trial.configuration).items() for one in row(name, value)
    ]
    lines += [Content(""), *row("purpose", trial.purpose)]
    loaded = now.view.workload
    if loaded is not None:
        lines += [*row("device", one_line(loaded.device)), Content("")]
        for name, value in sorted(loaded.environment.items()):
            lines += row(f"{one_line(name)} ", one_line(value))
    return lines
