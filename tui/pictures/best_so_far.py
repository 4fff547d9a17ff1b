"""How the best rate of the search grew, trial by trial.

Curve and baseline are readings of the search alone: a rate that was confirmed was measured at
another time, and would make steps of what only the machine did.
"""

from __future__ import annotations

from textual.content import Content

from autotune.units import counted, format_change, format_rate
from autotune.view import RunView
from tui.pictures.axes import Axes, padded
from tui.pictures.bars import sparkline
from tui.pictures.legend import legend
from tui.trials import readings

BEST, BASELINE = "━", "╌"


def rates(view: RunView) -> list[float]:
    """The best rate after each trial of the search that ended."""
    best, found = 0.0, []
    for trial in sorted(view.trials, key=lambda t: t.number):
        if trial.is_repeat or trial.outcome is None:
            continue
        best = max(best, trial.measured.samples_per_s if trial.measured is not None else 0.0)
        found.append(best)
    return found


def one_line(view: RunView, cells: int) -> tuple[str, str]:
    """The growth in one row, and in words since when nothing was gained."""
    found = rates(view)
    if not found or found[-1] <= 0:
        return "", "nothing measured yet"
    since = next((n for n in range(1, len(found) + 1) if found[-n] < found[-1]), len(found) + 1) - 1
    gained = (
        f"no gain for {counted(since - 1, 'trial')}" if since > 1 else "gained by the last trial"
    )
    note = gained if len(found) > 1 else "after one trial"
    room = max(4, cells - len(note) - 2)
    return sparkline([rate for rate in found if rate > 0], room), f"  {note}"


def draw(view: RunView, width: int, height: int) -> list[Content]:
    """The picture, or a sentence where there is nothing to draw yet."""
    found = rates(view)
    if not found or found[-1] <= 0:
        return [Content.styled("No trial was measured yet.", "$text-muted")]
    if height < 5 or width < 40:
        return [Content.styled("No room for this picture.", "$text-muted")]
    baseline = view.baseline.measured if view.baseline is not None else None
    reach = [rate for rate in found if rate > 0]
    signs = legend(_legend(view), width, most=2 if height >= 8 else 1)
    axes = Axes(
        width=width,
        height=height - len(signs),
        x=(0.0, max(1.0, len(found) - 1.0)),
        y=padded([*reach, *([baseline.samples_per_s] if baseline else [])], 0.1),
        name_x=lambda value: f"{value:g}" if value == int(value) else "",
        name_y=format_rate,
    )
    if baseline is not None:
        for column in range(axes.num_cells):
            axes.put(column, axes.row(baseline.samples_per_s), BASELINE, "$text-muted")
    _draw_steps(axes, found)
    return [*axes.lines(), *signs]


def _legend(view: RunView) -> list[str]:
    parts = [f"{BEST} best rate by trial{' of the search' if view.confirmed else ''}, samples/s"]
    if view.baseline is not None and view.baseline.measured is not None:
        parts.append(f"{BASELINE} baseline")
    best = readings.best(view)
    ratio = readings.gain(best, view) if best is not None else None
    if ratio is not None:
        is_sure = view.confirmed is not None and readings.is_baseline_confirmed(view)
        sure = f" {readings.signed(view.confirmed)}" if is_sure and view.confirmed else ""
        parts.append(f"{format_change(ratio)} vs baseline{sure}")
    return parts


def _draw_steps(axes: Axes, found: list[float]) -> None:
    for number, rate in enumerate(found):
        if rate <= 0:
            continue
        right = axes.column(float(number + 1)) if number + 1 < len(found) else axes.num_cells
        for column in range(axes.column(float(number)), max(right, axes.column(float(number)) + 1)):
            axes.put(column, axes.row(rate), BEST, "$text-primary")
