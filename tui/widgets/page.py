"""Rows of text below one another, which take as much height as they need."""

from __future__ import annotations

from collections.abc import Iterable

from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.widgets import Static

from tui.widgets.rows import stacked


class Page(Static):
    """Shows rows that fit its width already; equal ones are not drawn again."""

    DEFAULT_CSS = """
    Page { height: auto; }
    """

    class Refit(Message):
        """There is another width for rows than before."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._shown: Content | None = None
        self._width = 0

    def on_resize(self, event: Resize) -> None:
        """Asks whoever made the rows for others."""
        if event.size.width != self._width:
            self._width = event.size.width
            self.post_message(self.Refit().set_sender(self))

    def show(self, rows: Iterable[Content]) -> bool:
        """Shows rows in the place of those before.

        Returns:
            Whether there are any.
        """
        listed = list(rows)
        content = stacked(listed)
        before = self._shown
        if before is None or content.plain != before.plain or content.spans != before.spans:
            self._shown = content
            self.update(content)
            # Textual keeps the height of what is changed before it is mounted.
            self.clear_cached_dimensions()
        return bool(listed)
