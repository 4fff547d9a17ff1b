"""How the best rate grew, trial by trial."""

from __future__ import annotations

from textual.content import Content

from autotune.display import wording
from autotune.units import format_change, format_rate
from autotune.view import RunView
from tui.pictures.axes import Axes, padded
from tui.pictures.bars import sparkline


def rates(view: RunView) -> list[float]:
    """The best rate after each trial of the search that ended."""
    best, found = 0.0, []
    for trial in sorted(view.trials, key=lambda t: t.number):
        if trial.purpose not in ("baseline", "search") or trial.outcome is None:
            continue
        best = max(best, trial.measured.samples_per_s if trial.measured else 0.0)
        found.append(best)
    return found


def one_line(view: RunView, cells: int) -> str:
    """The growth in one row, and since when nothing was gained."""
    found = rates(view)
    if not found or found[-1] <= 0:
        return "nothing measured yet"
    since = next((n for n in range(1, len(found) + 1) if found[-n] < found[-1]), len(found) + 1) - 1
    gained = f"no gain for {since - 1}" if since > 1 else "gained by the last trial"
    note = gained if len(found) > 1 else "one trial"
    room = max(4, cells - len(note) - 2)
    return f"{sparkline([rate for rate in found if rate > 0], room)}  {note}"


def draw(view: RunView, width: int, height: int) -> list[Content]:
    """The picture, or a sentence where there is nothing to draw yet."""
    found = rates(view)
    if not found or found[-1] <= 0:
        return [Content.styled("No trial was measured yet.", "$text-muted")]
    if height < 5 or width < 40:
        return [Content.styled("No room for this picture.", "$text-muted")]
    baseline = view.baseline.measured if view.baseline else None
    reach = [rate for rate in found if rate > 0]
    axes = Axes(
        width=width,
        height=height - 1,
        x=(0.0, max(1.0, len(found) - 1.0)),
        y=padded([*reach, *([baseline.samples_per_s] if baseline else [])], 0.1),
        name_x=lambda value: f"{value:g}" if value == int(value) else "",
        name_y=format_rate,
    )
    if baseline is not None:
        for column in range(axes.num_cells):
            axes.put(column, axes.row(baseline.samples_per_s), "╌", "$text-muted")
    _draw_steps(axes, found)
    best = view.trial(view.best.number) if view.best else None
    ratio = wording.speedup(best, view) if best is not None else None
    gain = f", {format_change(ratio)} against the baseline ╌" if ratio is not None else ""
    note = f"best rate after each trial, samples/s{gain}"
    return [*axes.lines(), Content.styled(note[:width], "$text-muted")]


def _draw_steps(axes: Axes, found: list[float]) -> None:
    for number, rate in enumerate(found):
        if rate <= 0:
            continue
        right = axes.column(float(number + 1)) if number + 1 < len(found) else axes.num_cells
        for column in range(axes.column(float(number)), max(right, axes.column(float(number)) + 1)):
            axes.put(column, axes.row(rate), "━", "$text-primary")
