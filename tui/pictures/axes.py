"""A grid of characters between two axes, for a handful of points that have names.

Libraries for plots were tried in the nine rows that a window of 80x24 has for a picture. They draw
curves well, but leave four to six rows for the points, name a point or mark it, not both, and one
of them takes a second to load. Here a point is a glyph with a trial's number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from textual.content import Content

Range = tuple[float, float]


def padded(values: Iterable[float], part: float = 0.05) -> Range:
    """A range with some air on both sides; a single value gets air as well."""
    found = list(values)
    low, high = min(found), max(found)
    air = (high - low) * part or abs(high) * part or 1.0
    return low - air, high + air


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round values within a range, no more than `most`."""
    if most < 1 or high <= low:
        return []
    raw = (high - low) / most
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw)
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step) + 1)]


@dataclass(slots=True)
class Axes:
    """Points between a vertical axis on the left and a horizontal one below.

    Args:
        width: Cells over all, labels included.
        height: Rows over all, the two of the horizontal axis included.
        x: Range of the horizontal axis.
        y: Range of the vertical axis.
    """

    width: int
    height: int
    x: Range
    y: Range
    name_x: Callable[[float], str]
    name_y: Callable[[float], str]
    _cells: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """Rows between the axes."""
        return max(1, self.height - 2)

    @property
    def label_cells(self) -> int:
        """Cells that the names on the left take."""
        return max(len(self.name_y(value)) for value in self.y) + 1

    @property
    def num_cells(self) -> int:
        """Cells between the axes."""
        return max(1, self.width - self.label_cells - 2)

    def column(self, x: float) -> int:
        """The cell of a value on the horizontal axis."""
        low, high = self.x
        return round((x - low) / (high - low) * (self.num_cells - 1))

    def row(self, y: float) -> int:
        """The row of a value on the vertical axis, from the top."""
        low, high = self.y
        return round((high - y) / (high - low) * (self.num_rows - 1))

    def put(self, column: int, row: int, text: str, style: str = "", *, over: bool = True) -> None:
        """Writes a text from a cell on, as far as there is room."""
        for at, character in enumerate(text, start=column):
            is_inside = 0 <= at < self.num_cells and 0 <= row < self.num_rows
            if is_inside and (over or (at, row) not in self._cells):
                self._cells[at, row] = (character, style)

    def is_free(self, column: int, row: int, num: int) -> bool:
        """Whether a text of that length would cover nothing."""
        return column + num <= self.num_cells and not any(
            (at, row) in self._cells for at in range(column, column + num)
        )

    def lines(self) -> list[Content]:
        """All rows."""
        rows = [self._line(row) for row in range(self.num_rows)]
        return [*rows, *self._below()]

    def _line(self, row: int) -> Content:
        high, low = self.y[1], self.y[0]
        is_named = row in {0, self.num_rows - 1} or (
            self.num_rows >= 7 and row == self.num_rows // 2
        )
        value = high - (high - low) * row / max(1, self.num_rows - 1)
        label = self.name_y(value) if is_named else ""
        parts: list[Content] = [
            Content.styled(
                f"{label:>{self.label_cells - 1}} {'┤' if is_named else '│'}", "$text-muted"
            )
        ]
        for column in range(self.num_cells):
            character, style = self._cells.get((column, row), (" ", ""))
            parts.append(Content.styled(character, style) if style else Content(character))
        return Content("").join(parts)

    def _below(self) -> list[Content]:
        axis = ["─"] * self.num_cells
        names = [" "] * self.num_cells
        free_from = 0
        for value in ticks(*self.x, most=max(2, self.num_cells // 14)):
            at, name = self.column(value), self.name_x(value)
            left = max(0, at - len(name) // 2)
            if left < free_from or left + len(name) > self.num_cells:
                continue
            axis[at] = "┬"
            names[left : left + len(name)] = name
            free_from = left + len(name) + 2
        pad = " " * self.label_cells
        return [
            Content.styled(f"{pad}└{''.join(axis)}", "$text-muted"),
            Content.styled(f"{pad} {''.join(names)}".rstrip(), "$text-muted"),
        ]
