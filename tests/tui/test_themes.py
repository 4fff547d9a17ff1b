"""Every text can be read on every ground it stands on, in colour and without."""

from __future__ import annotations

import pytest
from textual.color import Color
from textual.theme import Theme

from tui import words
from tui.themes import LOOKS, THEMES

LEAST = 4.5
TEXTS = (
    "text",
    "text-muted",
    "text-disabled",
    "text-primary",
    "text-accent",
    "text-warning",
    "text-error",
    "text-success",
    "text-secondary",
)
GROUNDS = ("background", "surface", "panel")


def luminance(colour: Color) -> float:
    def linear(part: float) -> float:
        return part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(part / 255) for part in colour.rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Color, other: Color) -> float:
    """The ratio of the WCAG: relative luminances with 0.05 of stray light."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def variables(theme: Theme) -> dict[str, str]:
    return {**theme.to_color_system().generate(), **theme.variables}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("is_grey", [False, True])
def test_contrast_of_every_text_on_every_ground(look: str, is_grey: bool) -> None:
    known = variables(THEMES[look])  # type: ignore[index]

    def colour(name: str) -> Color:
        found = Color.parse(known[name])
        return found.monochrome if is_grey else found

    pairs = [(text, ground) for text in TEXTS for ground in GROUNDS]
    pairs += [
        ("block-cursor-foreground", "block-cursor-background"),
        ("block-cursor-blurred-foreground", "block-cursor-blurred-background"),
    ]
    for text, ground in pairs:
        ratio = contrast(colour(text), colour(ground))
        assert ratio >= LEAST, f"{text} on {ground}: {ratio:.1f}"


@pytest.mark.parametrize("look", LOOKS)
def test_a_theme_is_opaque_and_names_every_tone(look: str) -> None:
    known = variables(THEMES[look])  # type: ignore[index]
    for tone in words.TONES.values():
        assert Color.parse(known[tone.removeprefix("$")]).a == 1
    assert not THEMES[look].ansi  # type: ignore[index]
