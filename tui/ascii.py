"""Everything in ASCII, for terminals and fonts that know nothing else (`--ascii`).

The last station before the screen translates every cell, so that borders and widgets of Textual are
reached as well. A text stays as wide as it was. Keys that have a glyph are written as words where
there is a choice (`tui.bindings.spelled_out`), since any single character would be another key.
"""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

# Whatever stands beside one another in a legend or a column has a stand-in of its own.
_PAIRS = {
    "✓": "+",
    "✗": "x",
    "▲": "!",
    "◷": "t",
    "⊘": "/",
    "▸": ">",
    "·": ".",
    "–": "-",
    "−": "-",
    "—": "-",
    "±": "+",
    "×": "x",
    "…": "~",
    "→": ">",
    "←": "<",
    "↑": "^",
    "↓": "_",
    "▼": "v",
    "●": "@",
    "○": "o",
    "◆": "c",
    "◇": "?",
    "•": "*",
    "★": "*",
    "µ": "u",
    "≥": ">",
    "≤": "<",
    "²": "2",
    "°": "'",
    "␣": "_",
    "⏎": "<",
    "‹": "<",
    "›": "|",
    "’": "'",
    "█": "#",
    "░": ".",
    "▒": ":",
    "▓": "%",
    "┊": ":",
    "━": "=",
    "╌": ".",
    "\u00a0": " ",
    # The sign of the palette is two cells wide.
    "🔎": "/ ",
}
_RANGES = (
    ("▁▂▃▄▅▆▇", "_.-=+*%"),
    ("▏▎▍▌▋▊▉", ":::==##"),
    ("─╍┄┅═╴╶╸╺", "---------"),
    ("│┃╎╏┆┇║╵╷╹╻", "|||||||||||"),
)
_LONGER = (
    (re.compile(r"±(\d[\d.]*) %"), r"+-\1%"),
    (re.compile(r"  ±"), " +-"),
    (re.compile(r"± "), "+-"),
    (re.compile(r" → "), "-> "),
    (re.compile(r"≥ "), ">="),
    (re.compile(r"≤ "), "<="),
)
"""Signs that take two characters, where there is a blank to take the place of."""


def _table() -> dict[int, str]:
    table = {ord(one): other for one, other in _PAIRS.items()}
    for ones, others in _RANGES:
        table |= {ord(one): other for one, other in zip(ones, others, strict=True)}
    return table


_TABLE = _table()
_OTHER = re.compile(r"[^\x00-\x7f]")


def to_ascii(text: str) -> str:
    """The text in ASCII, as wide as before."""
    if text.isascii():
        return text
    for pattern, longer in _LONGER:
        text = pattern.sub(longer, text)
    text = text.translate(_TABLE)
    return _OTHER.sub(lambda match: _stand_in(match[0]), text)


def _stand_in(character: str) -> str:
    # Corners and crossings of boxes.
    if "─" <= character <= "╿":
        return "+"
    if "▀" <= character <= "▟":
        return "#"
    if "⠀" <= character <= "⣿":
        return ":" if character != "⠀" else " "
    return "?" * cell_len(character)


class AsciiFilter(LineFilter):
    """Translates every segment on its way to the terminal."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same cells in ASCII."""
        return [
            segment if segment.control else Segment(to_ascii(segment.text), segment.style)
            for segment in segments
        ]
