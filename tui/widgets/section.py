"""A rule with a title, and with a few words at its right end."""

from __future__ import annotations

from textual.content import Content

from tui.widgets.one_line import OneLine


class Section(OneLine):
    """One row: `─ title ───────── words ─`, as wide as there is room."""

    DEFAULT_CSS = """
    Section { color: $text-muted; }
    """

    def __init__(
        self, title: str, right: str = "", *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._title = title
        self._right = right

    def set_title(self, title: str) -> None:
        """Changes the title."""
        self._title = title
        self._draw()

    def set_right(self, text: str) -> None:
        """Changes the words at the right end."""
        self._right = text
        self._draw()

    def on_resize(self) -> None:
        """Draws the rule as long as the row."""
        self._draw()

    def _draw(self) -> None:
        width = self.size.width
        if not width:
            return
        right = f" {self._right} ─" if self._right else "─"
        room = width - len(right) - 4
        if room < len(self._title):
            right, room = "─", width - 5
        title = self._title[: max(0, room)]
        dashes = "─" * max(0, width - len(title) - len(right) - 4)
        self.say(Content.assemble(" ─ ", (title, "bold $text"), f" {dashes}{right}"))
