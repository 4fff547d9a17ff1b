"""Speed against memory: every trial a point, the front of those that nothing beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from textual.content import Content

from autotune.outcome import OutOfMemory
from autotune.units import format_rate
from autotune.view import RunView, TrialView
from tui.pictures.axes import Axes, padded

_MIN_ROWS = 5
_SIGNS = ("★ best", "● measured, on the front", "○ measured", "▲ out of memory", "┊ limit")


def front(trials: Sequence[TrialView]) -> list[TrialView]:
    """Measured trials that no other one beats in speed and memory at once, by memory."""
    best_rate = float("-inf")
    kept = []
    for trial in sorted(trials, key=lambda t: (_memory(t), -_rate(t))):
        if _rate(trial) > best_rate:
            best_rate = _rate(trial)
            kept.append(trial)
    return kept


def draw(view: RunView, width: int, height: int) -> list[Content]:
    """The picture, or a sentence where there is nothing to draw yet."""
    measured = [
        trial
        for trial in view.trials
        if trial.measured is not None and trial.purpose in ("baseline", "search")
    ]
    if not measured:
        return [Content.styled("No trial was measured yet.", "$text-muted")]
    if height < _MIN_ROWS or width < 40:
        return [Content.styled("No room for this picture.", "$text-muted")]
    limit = view.machine.memory_limit_bytes if view.machine else None
    needs = [_memory(trial) for trial in measured]
    reach = [*needs, *([limit] if limit and limit < 3 * max(needs) else [])]
    unit, unit_bytes = ("GiB", 1024**3) if max(reach) >= 1.5 * 1024**3 else ("MiB", 1024**2)
    axes = Axes(
        width=width,
        height=height - 1,
        x=padded(reach),
        y=padded([_rate(trial) for trial in measured], 0.1),
        name_x=lambda value: f"{value / unit_bytes:g} {unit}",
        unit_x=float(unit_bytes),
        name_y=format_rate,
    )
    kept = front(measured)
    _draw_limit(axes, limit)
    best = view.best.number if view.best else None
    on_front = {trial.number for trial in kept}
    # The best is drawn last, so that nothing lies over it.
    for trial in _one_a_cell(axes, measured, {*on_front, best}):
        _draw_point(axes, trial, is_best=trial.number == best, is_kept=trial.number in on_front)
    _draw_front(axes, kept)
    _draw_misses(axes, view)
    return [*axes.lines(), Content.styled(_legend(view, width), "$text-muted")]


def _legend(view: RunView, width: int) -> str:
    """What the signs mean, as far as there is room; a sign with half its meaning says nothing."""
    signs = [*_SIGNS]
    if any(trial.predicted_bytes is not None for trial in view.trials):
        signs.append("predictions: heat map")
    legend = ""
    for sign in signs:
        longer = f"{legend}  {sign}" if legend else sign
        if len(longer) <= width:
            legend = longer
    return legend


def _rate(trial: TrialView) -> float:
    return trial.measured.samples_per_s if trial.measured else 0.0


def _memory(trial: TrialView) -> float:
    return float(trial.measured.memory.total_bytes) if trial.measured else 0.0


def _one_a_cell(
    axes: Axes, trials: Sequence[TrialView], chosen: set[int | None]
) -> list[TrialView]:
    """Trials in the order in which they are drawn; of others that share a cell, the newest."""
    others: dict[tuple[int, int], TrialView] = {}
    last = []
    for trial in trials:
        if trial.number in chosen:
            last.append(trial)
        else:
            others[axes.column(_memory(trial)), axes.row(_rate(trial))] = trial
    return [*others.values(), *sorted(last, key=_rate)]


def _draw_limit(axes: Axes, limit: int | None) -> None:
    if limit is not None and axes.x[0] <= limit <= axes.x[1]:
        for row in range(axes.num_rows):
            axes.put(axes.column(limit), row, "┊", "$text-warning")


def _draw_front(axes: Axes, kept: Sequence[TrialView]) -> None:
    for one, other in pairwise(kept):
        left, right = axes.column(_memory(one)), axes.column(_memory(other))
        for column in range(left + 1, right):
            axes.put(column, axes.row(_rate(one)), "·", "$text-muted", over=False)


def _draw_point(axes: Axes, trial: TrialView, *, is_best: bool, is_kept: bool) -> None:
    column, row = axes.column(_memory(trial)), axes.row(_rate(trial))
    glyph = "★" if is_best else "●" if is_kept else "○"
    style = "bold $text-accent" if is_best else "$text-primary" if is_kept else "$text"
    name = f"{trial.number}"
    axes.put(column, row, glyph, style)
    right_of = column + 1
    if axes.is_free(right_of, row, len(name)) or is_best:
        axes.put(right_of, row, name, style)


def _draw_misses(axes: Axes, view: RunView) -> None:
    """Trials that ran out of memory, at what they are known to need, on the lowest row."""
    places: dict[int, TrialView] = {}
    for trial in view.trials:
        if isinstance(trial.outcome, OutOfMemory):
            needed = trial.outcome.needed_at_least_bytes
            right = axes.num_cells - 4
            places[right if needed is None else min(axes.column(needed), right)] = trial
    for at, trial in places.items():
        axes.put(at, axes.num_rows - 1, f"▲{trial.number}", "$text-warning")
