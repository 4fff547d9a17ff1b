"""A rule with a title, and words at its right end."""

from __future__ import annotations

from textual.content import Content

from tui.widgets.one_line import OneLine


def ruled(title: str, note: str, width: int) -> Content:
    """`─ title ───── note ─`, as wide as `width`."""
    note = f" {note} ─" if note else ""
    room = width - len(note) - 1
    left = f"─ {title} "
    if len(left) > room:
        note, room = "", width - 1
    text = left[:room].ljust(room, "─") + note
    return Content.styled(text[:width], "$text-muted")


class Rule(OneLine):
    """The head of a part of a screen."""

    def __init__(self, title: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = title
        self._note = ""

    def tell(self, note: str = "", *, title: str | None = None) -> None:
        """Changes the words at the right, and the title where one is given."""
        self._title, self._note = title or self._title, note
        if self.size.width:
            self.say(Content.assemble(" ", ruled(self._title, self._note, self.size.width - 2)))

    def on_resize(self) -> None:
        """Fills the new width."""
        self.tell(self._note)
