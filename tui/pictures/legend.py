"""What the signs of a picture mean, in as many rows as that takes; no meaning is cut."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

GAP = "  "


def packed(parts: Sequence[str], width: int, most: int) -> list[str]:
    """Parts in rows of at most `width` cells.

    Args:
        parts: What matters most first: what does not fit is left out from the end. A part that is
            wider than a row goes on in the next one, where a word ends.
        width: Cells of a row.
        most: Rows there may be.
    """
    rows: list[str] = []
    for part in parts:
        before = list(rows)
        gap = GAP
        for word in _pieces(part, width):
            longer = f"{rows[-1]}{gap}{word}" if rows else word
            if rows and len(longer) <= width:
                rows[-1] = longer
            else:
                rows.append(word)
            gap = " "
        if len(rows) > most or any(len(row) > width for row in rows):
            rows = before
    return rows


def _pieces(part: str, width: int) -> list[str]:
    return [part] if len(part) <= width else part.split()


def legend(parts: Sequence[str], width: int, most: int = 2) -> list[Content]:
    """The rows below a picture."""
    return [Content.styled(row, "$text-muted") for row in packed(parts, width, most)]
