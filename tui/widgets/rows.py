"""Text in columns and with hanging indents, fitted to a width; nothing is cut without a mark."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from textual.content import Content

Tone = str
"""Name of a style of the theme."""

MARKS: dict[str, tuple[str, Tone]] = {
    "ok": ("✓", "$text-success"),
    "note": ("▲", "$text-warning"),
    "wrong": ("✗", "$text-error"),
    "asking": ("▸", "$text-primary"),
    "open": ("·", "$text-muted"),
    "none": ("–", "$text-muted"),
}
"""Glyph and style by the state of a line; the text beside it says the same in words."""


def mark(name: str) -> Content:
    """The glyph of a state in its style."""
    glyph, tone = MARKS[name]
    return Content.styled(glyph, tone)


def hanging(head: Content | str, text: str, width: int, *, tone: Tone = "") -> list[Content]:
    """A head, and a text beside it that goes on below itself.

    Args:
        head: What stands before the first row; as wide as the indent of the others.
        text: Any length.
        width: Cells that a row may have.
        tone: Style of the text.
    """
    head = head if isinstance(head, Content) else Content(head)
    indent = head.cell_length
    room = max(8, width - indent)
    rows = _wrapped(text, room) or [""]
    first = Content.assemble(head, (rows[0], tone)) if tone else Content.assemble(head, rows[0])
    return [
        first,
        *(
            Content.assemble(" " * indent, (row, tone)) if tone else Content(" " * indent + row)
            for row in rows[1:]
        ),
    ]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=True, break_on_hyphens=False)


def cut_off(text: str, width: int, num_rows: int) -> list[str]:
    """The text in so many rows at most; where it needs more, the last one ends in an ellipsis."""
    rows = _wrapped(text, width)
    if len(rows) <= num_rows:
        return rows
    return [*rows[: num_rows - 1], padded(" ".join(rows[num_rows - 1 :]), width)]


def padded(text: str, width: int, *, right: bool = False) -> str:
    """The text in a column of so many cells; a longer one is cut with an ellipsis."""
    length = cell_len(text)
    if length > width:
        return text[: max(0, width - 1)] + "…"
    space = " " * (width - length)
    return space + text if right else text + space


def columns(
    rows: Sequence[Sequence[str]], width: int, *, right: Sequence[int] = (), gap: int = 2
) -> list[str]:
    """Rows in columns as wide as their widest cell; the last columns are left out that do not fit.

    Args:
        rows: As many cells in each.
        width: Cells that a row may have.
        right: Columns that end flush.
        gap: Cells between two columns.
    """
    if not rows:
        return []
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    while len(widths) > 1 and sum(widths) + gap * (len(widths) - 1) > width:
        widths.pop()
    space = " " * gap
    return [
        space.join(
            padded(cell, min(size, width), right=number in right)
            for number, (cell, size) in enumerate(zip(row, widths, strict=False))
        ).rstrip()
        for row in rows
    ]


def stacked(rows: Iterable[Content | str]) -> Content:
    """Rows below one another."""
    return Content("\n").join([row if isinstance(row, Content) else Content(row) for row in rows])
