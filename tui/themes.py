"""The two themes, and the style of a state. Every text on every ground has a contrast above 4.5.

Blue and orange carry the meaning, so that neither red nor green has to be told from the other; and
colour only underlines what a glyph and a word say already. Without colour (`NO_COLOR`) the greys
that are left keep the same contrast.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from textual.theme import Theme

Look: TypeAlias = Literal["dark", "light"]
LOOKS: tuple[Look, ...] = ("dark", "light")

DARK = Theme(
    name="autotune-dark",
    dark=True,
    primary="#5ab0ff",
    secondary="#8fb8de",
    accent="#ffb454",
    warning="#ffb454",
    error="#ff8f80",
    success="#7ecbff",
    foreground="#e8eaed",
    background="#14181d",
    surface="#1b2027",
    panel="#262d36",
    variables={
        "text": "#e8eaed",
        "text-muted": "#a8b3bf",
        "text-disabled": "#919ca8",
        "text-primary": "#7cc0ff",
        "text-secondary": "#a9c9e8",
        "text-accent": "#ffc46b",
        "text-warning": "#ffc46b",
        "text-error": "#ffa598",
        "text-success": "#9fd8ff",
        "block-cursor-background": "#2f5f8f",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-blurred-background": "#323b47",
        "block-cursor-blurred-foreground": "#e8eaed",
        "border": "#5ab0ff",
        "border-blurred": "#5c6875",
        "scrollbar": "#4a5664",
        "scrollbar-background": "#1b2027",
        "footer-key-foreground": "#ffc46b",
    },
)
LIGHT = Theme(
    name="autotune-light",
    dark=False,
    primary="#0b5cad",
    secondary="#31597f",
    accent="#8a4b00",
    warning="#8a4b00",
    error="#a3231a",
    success="#0b5cad",
    foreground="#16191d",
    background="#fbfbf8",
    surface="#f2f2ee",
    panel="#e4e6e3",
    variables={
        "text": "#16191d",
        "text-muted": "#4a545e",
        "text-disabled": "#5a646e",
        "text-primary": "#0b4f96",
        "text-secondary": "#2c4f71",
        "text-accent": "#7a4200",
        "text-warning": "#7a4200",
        "text-error": "#93201a",
        "text-success": "#0b4f96",
        "block-cursor-background": "#0b5cad",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-blurred-background": "#cfd8e0",
        "block-cursor-blurred-foreground": "#16191d",
        "border": "#0b5cad",
        "border-blurred": "#7b858f",
        "scrollbar": "#a9b3bc",
        "scrollbar-background": "#f2f2ee",
        "footer-key-foreground": "#7a4200",
    },
)
THEMES: dict[Look, Theme] = {"dark": DARK, "light": LIGHT}
