"""The last row of every screen: the keys that matter most here."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.content import Content

from tui import bindings
from tui.bindings import Key
from tui.widgets.one_line import OneLine

if TYPE_CHECKING:
    from tui.screens.base import RunScreen

_GAP = "  "


class KeyBar(OneLine):
    """As many keys as fit, help first; the palette on the right. Each can be clicked."""

    def bring_up_to_date(self) -> None:
        """Draws again: what a key needs may have come or gone."""
        width = self.size.width
        if not width:
            return
        screen = cast("RunScreen", self.screen)
        palette = _text(_palette())
        room = width - 2 - len(palette.plain) - len(_GAP)
        parts: list[Content] = []
        used = 0
        for key in bindings.in_footer(screen.NAME):
            text = _text(key, is_live=screen.has(key.needs))
            if used + len(text.plain) > room:
                break
            parts += [text, Content(_GAP)]
            used += len(text.plain) + len(_GAP)
        fill = max(0, width - 2 - used - len(palette.plain))
        self.say(Content.assemble(" ", *parts, " " * fill, palette, " "))

    def on_resize(self) -> None:
        """Fits the keys to the new width."""
        self.bring_up_to_date()


def _palette() -> Key:
    key = bindings.by_verb("app.command_palette")
    assert key is not None
    return key


def _text(key: Key, *, is_live: bool = True) -> Content:
    if not is_live:
        return Content.styled(f"{key.shown} {key.label}", "$text-disabled")
    text = Content.assemble((key.shown, "bold $text-accent"), f" {key.label}")
    return text.stylize(f"@click={key.verb}")
