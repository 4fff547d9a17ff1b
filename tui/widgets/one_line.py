"""A row of text that is cheap to change: the form that live numbers take."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static


class OneLine(Static):
    """One row. What is too long is cut with an ellipsis; equal text is not drawn again."""

    DEFAULT_CSS = """
    OneLine { height: 1; width: 1fr; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("", id=id, classes=classes, markup=False)
        self._said: Content | None = None

    def say(self, text: str | Content) -> None:
        """Shows a text. Square brackets in it are square brackets."""
        content = text if isinstance(text, Content) else Content(text)
        if self._said is None or not _same(content, self._said):
            self._said = content
            self.update(content)

    @property
    def said(self) -> str:
        """The text that is shown, whole."""
        return self._said.plain if self._said is not None else ""


def _same(one: Content, other: Content) -> bool:
    return one.plain == other.plain and one.spans == other.spans


def spread(left: str, right: str, width: int, *, gap: int = 2) -> str:
    """Both ends of a row; the left one is cut where both do not fit."""
    room = width - len(right) - gap
    if room < 4:
        return right[:width] if right else left[:width]
    if len(left) > room:
        left = left[: room - 1] + "…"
    return left.ljust(width - len(right)) + right
