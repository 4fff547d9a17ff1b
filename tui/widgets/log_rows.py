"""A log that follows its end until somebody scrolls away, and in which words can be found."""

from __future__ import annotations

from bisect import bisect_right
from typing import ClassVar

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

CUT = "…"
"""Stands where a line goes on beyond the window."""


class LogRows(ScrollView):
    """Lines of text as they stand. Nothing in them is markup."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"log--found"}
    DEFAULT_CSS = """
    LogRows { height: 1fr; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1; }
    LogRows .log--found { background: $block-cursor-background; color: $block-cursor-foreground; }
    """

    class Moved(Message):
        """The end came into sight, or went out of it."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: tuple[str, ...] = ()
        self._found: int | None = None
        self._rows: tuple[str, ...] = ()
        """The lines as they are shown: a wrapped one takes several."""
        self._first: list[int] = []
        """For each line, the row that it begins in; empty where rows are lines."""
        self.is_wrapped = False
        """Whether long lines go on in the next row, instead of to the right."""
        self.is_following = True
        """Whether the end stays in sight as lines arrive."""
        self.num_new = 0
        """Lines that arrived since the end went out of sight."""

    def show(self, lines: tuple[str, ...], num_before: int) -> None:
        """Shows other lines.

        Args:
            lines: All of them.
            num_before: Lines that came before these and were dropped, to keep what is in sight
                where it is.
        """
        grown = len(lines) - len(self._lines)
        self._lines = lines
        self._fit()
        if self.is_following:
            self.scroll_end(animate=False, force=True, immediate=True, x_axis=False)
        else:
            self.num_new += max(0, grown)
        self.refresh()

    def _fit(self) -> None:
        """Lays the lines out for the width."""
        width = self.scrollable_content_region.width
        if not self.is_wrapped or width < 1:
            self._rows, self._first = self._lines, []
        else:
            rows: list[str] = []
            self._first = []
            for line in self._lines:
                self._first.append(len(rows))
                rows += chop_cells(line, width) or [""]
            self._rows = tuple(rows)
        self.virtual_size = Size(max(map(cell_len, self._rows), default=0), len(self._rows))

    def _of_row(self, row: int) -> int:
        """The line that is shown in a row."""
        return bisect_right(self._first, row) - 1 if self._first else row

    def _row_of(self, line: int) -> int:
        """The row that a line begins in."""
        return self._first[line] if self._first else line

    def wrap(self, *, on: bool) -> None:
        """Breaks long lines into rows, or lets them go on to the right."""
        self.is_wrapped = on
        self._fit()
        self.scroll_to(x=0, animate=False, force=True, immediate=True)
        if self.is_following:
            self.scroll_end(animate=False, force=True, immediate=True, x_axis=False)
        self.refresh()

    def on_resize(self) -> None:
        """Wrapped lines have other rows in another width."""
        if self.is_wrapped:
            self._fit()
            if self.is_following:
                self.scroll_end(animate=False, force=True, immediate=True, x_axis=False)
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """One row of the window."""
        left, top = self.scroll_offset
        index, width = y + top, self.size.width
        if index >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        style = self.rich_style
        if self._found is not None and self._of_row(index) == self._found:
            style += self.get_component_rich_style("log--found")
        text = self._rows[index]
        strip = Strip([Segment(text, style)]).crop_extend(left, left + width, style)
        # What goes on to either side says so, and the arrows or a wrap show it.
        if cell_len(text) > left + width:
            strip = Strip.join([strip.crop(0, width - 1), Strip([Segment(CUT, style)])])
        if left and text.strip():
            strip = Strip.join([Strip([Segment(CUT, style)]), strip.crop(1, width)])
        return strip

    def watch_scroll_y(self, old: float, new: float) -> None:
        """Follows again once the end is in sight."""
        super().watch_scroll_y(old, new)
        is_at_end = self.scroll_offset.y >= self.max_scroll_y
        if is_at_end != self.is_following:
            self.is_following = is_at_end
            if is_at_end:
                self.num_new = 0
            self.post_message(self.Moved().set_sender(self))

    def follow(self) -> None:
        """Goes to the end and stays there."""
        self.is_following = True
        self.num_new = 0
        self.scroll_end(animate=False, force=True, immediate=True, x_axis=False)
        self.post_message(self.Moved().set_sender(self))

    @property
    def has_long(self) -> bool:
        """Whether a line is longer than the window is wide."""
        return not self.is_wrapped and self.virtual_size.width > self.size.width > 0

    def find(self, words: str) -> tuple[int, int]:
        """Goes to the next line that holds the words, whatever their case.

        Returns:
            Which of the lines that hold them it is, counted from 1, and how many there are.
        """
        wanted = words.lower()
        hits = [i for i, line in enumerate(self._lines) if wanted in line.lower()]
        if not hits:
            self._found = None
            self.refresh()
            return 0, 0
        after = -1 if self._found is None else self._found
        self._found = next((i for i in hits if i > after), hits[0])
        self.is_following = False
        self.scroll_to(
            y=max(0, self._row_of(self._found) - self.size.height // 2),
            animate=False,
            force=True,
            immediate=True,
        )
        self.refresh()
        return hits.index(self._found) + 1, len(hits)

    def forget(self) -> None:
        """Empties itself for another log."""
        self._lines, self._rows, self._first, self._found = (), (), [], None
        self.is_following, self.num_new = True, 0
        self.virtual_size = Size(0, 0)
        self.refresh()
