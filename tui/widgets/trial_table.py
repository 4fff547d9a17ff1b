"""The table of trials: only the rows in sight are drawn, however many there are.

Textual's DataTable measures every cell of every row when it is filled, which takes seconds for
thousands of trials, and repaints as a whole for one changed cell. Here a change costs the rows in
sight, and equal rows are not sent again.
"""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from autotune.view import RunView, TrialView
from tui.trials import columns
from tui.trials.columns import Column
from tui.trials.filter import Filter

POINTER = "›"
"""Stands before the row under the cursor."""


class TrialRows(ScrollView):
    """The rows, with a cursor that stays on its trial whatever moves around it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "rows--measured",
        "rows--failed",
        "rows--out_of_memory",
        "rows--timed_out",
        "rows--stopped",
        "rows--running",
        "rows--lost",
        "rows--cursor",
        "rows--predicted",
    }
    DEFAULT_CSS = """
    TrialRows { height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; }
    TrialRows .rows--measured { color: $text; }
    TrialRows .rows--failed { color: $text-error; }
    TrialRows .rows--out_of_memory { color: $text-warning; }
    TrialRows .rows--timed_out { color: $text-warning; }
    TrialRows .rows--stopped { color: $text-muted; }
    TrialRows .rows--running { color: $text-primary; text-style: bold; }
    TrialRows .rows--predicted { color: $text-muted; text-style: italic; }
    TrialRows .rows--lost { color: $text-warning; }
    TrialRows .rows--cursor {
        color: $block-cursor-foreground; background: $block-cursor-background; text-style: bold;
    }
    """

    class Moved(Message):
        """The cursor stands on another trial."""

        def __init__(self, number: int | None) -> None:
            super().__init__()
            self.number = number

    class Opened(Message):
        """A trial was clicked that the cursor stood on already."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._view = RunView()
        self._trials: list[TrialView] = []
        self._columns: tuple[Column, ...] = ()
        self._cursor = 0
        self.number: int | None = None
        """Number of the trial under the cursor."""

    def fill(self, trials: list[TrialView], view: RunView, chosen: tuple[Column, ...]) -> None:
        """Shows other rows; what is the same as before is not drawn again."""
        before = self._trials, self._columns, self._cursor, self._view.confirmed
        self._trials, self._columns, self._view = trials, chosen, view
        at = next((i for i, t in enumerate(trials) if t.number == self.number), None)
        if at is None:
            at = min(self._cursor, max(0, len(trials) - 1))
        self._cursor = at
        size = Size(self._row_width, len(trials))
        if size != self.virtual_size:
            self.virtual_size = size
        if before != (trials, chosen, at, view.confirmed):
            self.refresh()
        self._settle_number()

    @property
    def _row_width(self) -> int:
        return sum(column.width + 1 for column in self._columns)

    def render_line(self, y: int) -> Strip:
        """One row of the window."""
        index = y + self.scroll_offset.y
        width = self.size.width
        if index >= len(self._trials):
            return Strip.blank(width, self.rich_style)
        trial = self._trials[index]
        is_cursor = index == self._cursor
        style = self.rich_style + self._style(trial, is_cursor=is_cursor)
        predicted = style + (
            Style(italic=True)
            if is_cursor
            else self.get_component_rich_style("rows--predicted", partial=True)
        )
        parts = [Segment(POINTER if is_cursor else " ", style)]
        cells = columns.cells(trial, self._view, self._columns)
        for place, (column, cell) in enumerate(zip(self._columns, cells, strict=True)):
            gap = " " if place else ""
            parts.append(Segment(f"{gap}{cell}", predicted if column.is_predicted else style))
        return Strip(Segment.simplify(parts)).adjust_cell_length(width, style)

    def _style(self, trial: TrialView, *, is_cursor: bool) -> Style:
        name = "cursor" if is_cursor else trial.state
        return self.get_component_rich_style(f"rows--{name}")

    def move(self, by: int) -> None:
        """Moves the cursor by so many rows, as far as there are rows."""
        if self._trials:
            self._put(max(0, min(len(self._trials) - 1, self._cursor + by)))

    @property
    def page(self) -> int:
        """Rows of a page."""
        return max(1, self.size.height - 1)

    def _put(self, index: int) -> None:
        if index != self._cursor:
            for at in (self._cursor, index):
                self.refresh(Region(0, at - self.scroll_offset.y, self.size.width, 1))
            self._cursor = index
        self.scroll_to_region(Region(0, index, 1, 1), animate=False, force=True, immediate=True)
        self._settle_number()

    def _settle_number(self) -> None:
        number = self._trials[self._cursor].number if self._trials else None
        if number != self.number:
            self.number = number
            self.post_message(self.Moved(number).set_sender(self))

    def choose(self, number: int) -> None:
        """Puts the cursor on a trial, if its row is there."""
        for index, trial in enumerate(self._trials):
            if trial.number == number:
                self._put(index)

    def on_click(self, event: events.Click) -> None:
        """Puts the cursor on a row; a click on the cursor opens."""
        index = event.y + self.scroll_offset.y
        if index >= len(self._trials):
            return
        if index == self._cursor:
            self.post_message(self.Opened(self._trials[index].number).set_sender(self))
        else:
            self._put(index)


class TableHead(Static):
    """The names of the columns. A click sorts by one."""

    DEFAULT_CSS = """
    TableHead { height: 1; color: $text-muted; text-wrap: nowrap; text-overflow: clip; }
    """

    class Chosen(Message):
        """A column was clicked."""

        def __init__(self, column: Column) -> None:
            super().__init__()
            self.column = column

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._columns: tuple[Column, ...] = ()
        self._said = ""

    def show(self, chosen: tuple[Column, ...], sorted_by: Column, *, is_descending: bool) -> None:
        """Names the columns."""
        self._columns = chosen
        text = f" {columns.head(chosen, sorted_by, is_descending=is_descending)}"
        if text != self._said:
            self._said = text
            self.update(text, layout=False)

    def on_click(self, event: events.Click) -> None:
        """Asks for another order."""
        column = columns.column_at(self._columns, event.x - 1)
        if column is not None:
            self.post_message(self.Chosen(column).set_sender(self))


class TrialTable(Vertical):
    """Head and rows, in one order and behind one filter."""

    class Ordered(Message):
        """Other rows are shown, or the same ones in another order."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.filter = Filter()
        self.in_force = self.filter
        """What decides over the rows: a filter that no trial passes hides none of them."""
        self.sorted_by = columns.BY_ID[columns.FASTEST_FIRST]
        self.is_descending = True
        self.num_shown = 0
        self._view = RunView()
        self._told: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        """Head and rows."""
        yield TableHead()
        yield TrialRows()

    @property
    def rows(self) -> TrialRows:
        """The rows."""
        return self.query_one(TrialRows)

    def show(self, view: RunView) -> None:
        """Shows the trials of a run; cheap where none of them changed."""
        self._view = view
        width = self.size.width - 2
        told = (
            *(view.trials, view.confirmed, view.foreseen, self.filter),
            *(self.sorted_by.id, self.is_descending, width, self.app.size.width),
        )
        if told == self._told or width < 1:
            return
        self._told = told
        self.in_force = self.filter.in_force(view)
        chosen = self._columns_that_fit()
        trials = columns.in_order(
            (trial for trial in view.trials if self.in_force.matches(trial, view)),
            view,
            self.sorted_by,
            is_descending=self.is_descending,
        )
        self.num_shown = len(trials)
        self.post_message(self.Ordered().set_sender(self))
        self.query_one(TableHead).show(chosen, self.sorted_by, is_descending=self.is_descending)
        self.rows.fill(trials, view, chosen)

    def _columns_that_fit(self) -> tuple[Column, ...]:
        return columns.that_fit(self.size.width - 2, self._view, window_cells=self.app.size.width)

    def sort_by(self, column: Column) -> None:
        """Sorts by a column; by the same one again, the other way round."""
        if column.id == self.sorted_by.id:
            self.is_descending = not self.is_descending
        else:
            self.sorted_by, self.is_descending = column, column.is_descending
        self.show(self._view)

    def sort_by_next(self) -> None:
        """Sorts by the next column that is in sight."""
        chosen = self._columns_that_fit()
        ids = [column.id for column in chosen]
        at = ids.index(self.sorted_by.id) if self.sorted_by.id in ids else -1
        self.sort_by(chosen[(at + 1) % len(chosen)])

    def reverse(self) -> None:
        """Sorts the other way round."""
        self.sort_by(self.sorted_by)

    def on_resize(self) -> None:
        """Other columns may fit now."""
        self.show(self._view)

    def on_table_head_chosen(self, message: TableHead.Chosen) -> None:
        """A head was clicked."""
        message.stop()
        self.sort_by(message.column)
