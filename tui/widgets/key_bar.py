"""The last row of every screen: the keys that matter most here."""

from __future__ import annotations

from textual.content import Content
from textual.style import Style

from tui import bindings
from tui.keys.key import Key
from tui.widgets.one_line import OneLine

_GAP = "  "


class KeyBar(OneLine):
    """As many keys as fit, help first; the palette on the right. Each can be clicked."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._keys: tuple[Key, ...] = ()
        self._note = ""

    def show(self, keys: tuple[Key, ...], note: str = "") -> None:
        """Shows other keys.

        Args:
            keys: Those that do something now, help first.
            note: What to know of them, before the first one.
        """
        self._keys, self._note = keys, note
        width = self.size.width
        if not width:
            return
        palette = _text(bindings.palette())
        room = width - 2 - len(palette.plain) - len(_GAP)
        parts: list[Content] = []
        used = 0
        if note:
            parts += [Content.styled(note, "$text-muted"), Content(_GAP)]
            used += len(note) + len(_GAP)
        for key in keys:
            text = _text(key)
            if used + len(text.plain) > room:
                break
            parts += [text, Content(_GAP)]
            used += len(text.plain) + len(_GAP)
        fill = max(0, width - 2 - used - len(palette.plain))
        self.say(Content.assemble(" ", *parts, " " * fill, palette, " "))

    def on_resize(self) -> None:
        """Fits the keys to the new width."""
        self.show(self._keys, self._note)


def _text(key: Key) -> Content:
    text = Content.assemble((key.shown, "bold $text-accent"), f" {key.label}")
    return text.stylize_before(Style.from_meta({"@click": key.verb}))
