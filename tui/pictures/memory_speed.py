"""Speed against memory: every trial a point, the front of those that nothing beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from textual.content import Content

from autotune.outcome import OutOfMemory
from autotune.units import format_rate
from autotune.view import RunView, TrialView
from tui.pictures.axes import Axes, padded
from tui.pictures.legend import legend
from tui.trials import readings
from tui.trials.readings import CONFIRMED, CONFIRMED_WORD, UNSETTLED, UNSETTLED_WORD, shown

_MIN_ROWS = 5
_MIN_ROWS_FOR_MORE = 12
"""From here on there is a row for what explains itself otherwise."""
SIGNS = {
    "★": "best",
    CONFIRMED: CONFIRMED_WORD,
    UNSETTLED: UNSETTLED_WORD,
    "●": "front",
    "○": "measured",
    "▲": "out of memory",
    "┊": "limit",
    "·": "the front: nothing is both faster and smaller",
}
"""What stands for a trial, or for a line between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A trial with the figures that are shown of it."""

    trial: TrialView
    rate: float
    memory: float
    is_confirmed: bool

    @property
    def number(self) -> int:
        """The trial's number."""
        return self.trial.number


def points(view: RunView) -> list[Point]:
    """Every configuration that was measured."""
    found = []
    for trial in view.trials:
        known = None if trial.is_repeat else shown(trial, view)
        if known is not None:
            found.append(
                Point(
                    trial=trial,
                    rate=known.samples_per_s,
                    memory=float(known.memory.total_bytes),
                    is_confirmed=known.is_confirmed,
                )
            )
    return found


def front(measured: Sequence[Point]) -> list[Point]:
    """What no other one beats in speed and memory at once, by memory."""
    best_rate = float("-inf")
    kept = []
    for point in sorted(measured, key=lambda p: (p.memory, -p.rate)):
        if point.rate > best_rate:
            best_rate = point.rate
            kept.append(point)
    return kept


def draw(view: RunView, width: int, height: int) -> list[Content]:
    """The picture, or a sentence where there is nothing to draw yet."""
    measured = points(view)
    if not measured:
        return [Content.styled("No trial was measured yet.", "$text-muted")]
    if height < _MIN_ROWS or width < 40:
        return [Content.styled("No room for this picture.", "$text-muted")]
    limit = view.machine.memory_limit_bytes if view.machine else None
    needs = [point.memory for point in measured]
    reach = [*needs, *([limit] if limit and limit < 3 * max(needs) else [])]
    unit, unit_bytes = ("GiB", 1024**3) if max(reach) >= 1.5 * 1024**3 else ("MiB", 1024**2)
    parts = _legend(view, measured, has_room=height >= _MIN_ROWS_FOR_MORE)
    signs = legend(parts, width, most=2 if height >= 8 else 1)
    axes = Axes(
        width=width,
        height=height - len(signs),
        x=padded(reach),
        y=padded([point.rate for point in measured], 0.1),
        name_x=lambda value: f"{value / unit_bytes:g} {unit}",
        unit_x=float(unit_bytes),
        name_y=format_rate,
    )
    kept = front(measured)
    _draw_limit(axes, limit)
    best = readings.best(view)
    best_number = best.number if best is not None else None
    on_front = {point.number for point in kept}
    # The best is drawn last, so that nothing lies over it.
    for point in _one_a_cell(axes, measured, on_front, best_number):
        _draw_point(axes, point, _sign(point, view, on_front))
    _draw_front(axes, kept)
    _draw_misses(axes, view)
    return [*axes.lines(), *signs]


def _legend(view: RunView, measured: Sequence[Point], *, has_room: bool) -> list[str]:
    """What the signs mean that are drawn, and the unit of the rates."""
    limit = view.machine.memory_limit_bytes if view.machine else None
    most = max(point.memory for point in measured)
    unused = set() if has_room else {"·"}
    unused |= {CONFIRMED, UNSETTLED}
    if view.confirmed is not None:
        unused.remove(readings.sign(view.confirmed))
    if not any(isinstance(trial.outcome, OutOfMemory) for trial in view.trials):
        unused.add("▲")
    if limit is None or limit >= 3 * most:
        unused.add("┊")
    signs = [f"{sign} {meaning}" for sign, meaning in SIGNS.items() if sign not in unused]
    return ["samples/s", *signs]


def _sign(point: Point, view: RunView, on_front: set[int]) -> str:
    best = readings.best(view)
    if best is not None and point.number == best.number:
        return "★"
    if point.is_confirmed and view.confirmed is not None:
        return readings.sign(view.confirmed)
    return "●" if point.number in on_front else "○"


def _one_a_cell(
    axes: Axes, measured: Sequence[Point], on_front: set[int], best: int | None
) -> list[Point]:
    """Points in the order in which they are drawn; of others that share a cell, the newest."""
    others: dict[tuple[int, int], Point] = {}
    last = []
    for point in measured:
        if point.number in on_front or point.number == best or point.is_confirmed:
            last.append(point)
        else:
            others[axes.column(point.memory), axes.row(point.rate)] = point
    return [*others.values(), *sorted(last, key=lambda p: (p.number == best, p.rate))]


def _draw_limit(axes: Axes, limit: int | None) -> None:
    if limit is not None and axes.x[0] <= limit <= axes.x[1]:
        for row in range(axes.num_rows):
            axes.put(axes.column(limit), row, "┊", "$text-warning")


def _draw_front(axes: Axes, kept: Sequence[Point]) -> None:
    for one, other in pairwise(kept):
        left, right = axes.column(one.memory), axes.column(other.memory)
        for column in range(left + 1, right):
            axes.put(column, axes.row(one.rate), "·", "$text-muted", over=False)


_STYLES = {
    "★": "bold $text-accent",
    CONFIRMED: "bold $text-primary",
    UNSETTLED: "bold $text-primary",
    "●": "$text-primary",
}


def _draw_point(axes: Axes, point: Point, sign: str) -> None:
    column, row = axes.column(point.memory), axes.row(point.rate)
    style = _STYLES.get(sign, "$text")
    name = f"{point.number}"
    axes.put(column, row, sign, style)
    right_of = column + 1
    if axes.is_free(right_of, row, len(name)) or sign == "★":
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
