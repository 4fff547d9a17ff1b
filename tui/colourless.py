"""Nothing of colour reaches the terminal where `NO_COLOR` asks for that, greys included.

What only a ground told apart, such as the row under the cursor, is reversed instead; what does
nothing now is dim. Both are up to the terminal, and so are its own colours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

_LEAST_CONTRAST = 1.33
"""Above it, a ground marks something; those of header, footer and fields are below."""


class Colourless(LineFilter):
    """Takes the colours off every segment on its way to the terminal.

    Args:
        grounds: Tells the colours of the theme that holds now: of its background, and of the text
            of what does nothing.
    """

    def __init__(self, grounds: Callable[[], tuple[str, str]]) -> None:
        super().__init__()
        self._grounds = grounds

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same cells without colour."""
        ground, disabled = self._grounds()
        return [
            segment
            if segment.style is None
            else Segment(segment.text, plain(segment.style, ground, disabled), segment.control)
            for segment in segments
        ]


@lru_cache(4096)
def plain(style: Style, ground: str, disabled: str) -> Style:
    """A style that tells the same without colour.

    Args:
        style: As the theme has it.
        ground: The theme's background.
        disabled: The theme's colour of text that does nothing.
    """
    own = style.color if style.reverse else style.bgcolor
    text = style.bgcolor if style.reverse else style.color
    is_marked = bool(style.reverse) if own is None else _contrast(own, ground) >= _LEAST_CONTRAST
    is_dim = bool(style.dim) or (
        not is_marked and text is not None and _colour(text) == Color.parse(disabled)
    )
    told = style.without_color + Style(reverse=is_marked or None, dim=is_dim or None)
    if style.reverse and not is_marked:
        told += Style(reverse=False)
    return told + Style(meta=style.meta) if style.meta else told


def _colour(colour: RichColor) -> Color:
    return Color.from_rich_color(colour)


def _contrast(colour: RichColor, ground: str) -> float:
    both = _luminance(_colour(colour)), _luminance(Color.parse(ground))
    dark, light = sorted(both)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Color) -> float:
    """Relative luminance, as the WCAG has it."""

    def linear(part: float) -> float:
        return part / 12.92 if part <= 0.03928 else float(((part + 0.055) / 1.055) ** 2.4)

    red, green, blue = (linear(part / 255) for part in colour.rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
