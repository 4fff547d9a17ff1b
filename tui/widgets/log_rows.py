"""A log that follows its end until somebody scrolls away, and in which words can be found."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip


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
        self.virtual_size = Size(max(map(cell_len, lines), default=0), len(lines))
        if self.is_following:
            self.scroll_end(animate=False, force=True, immediate=True, x_axis=False)
        else:
            self.num_new += max(0, grown)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One row of the window."""
        left, top = self.scroll_offset
        index, width = y + top, self.size.width
        if index >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        style = self.rich_style
        if index == self._found:
            style += self.get_component_rich_style("log--found")
        strip = Strip([Segment(self._lines[index], style)])
        return strip.crop_extend(left, left + width, style)

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
            y=max(0, self._found - self.size.height // 2),
            animate=False,
            force=True,
            immediate=True,
        )
        self.refresh()
        return hits.index(self._found) + 1, len(hits)

    def forget(self) -> None:
        """Empties itself for another log."""
        self._lines, self._found = (), None
        self.is_following, self.num_new = True, 0
        self.virtual_size = Size(0, 0)
        self.refresh()
