"""`?`: the keys that do something on the screen below, by group."""

from __future__ import annotations

from itertools import groupby
from textwrap import fill
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from tui import bindings
from tui.keys.key import ScreenName
from tui.screens.box import Box

HEADS = (
    "mbs is the micro-batch size, acc the accumulation steps, ckpt the checkpointing, sgd the "
    "local SGD steps, peak the memory at its highest, (…) what was only predicted of it, ± half of "
    "the 95 % interval, ◆ confirmed: the median of several fresh processes."
)
MOUSE = "Rows, heads and footer can be clicked. Shift and drag selects text, as without a program."


class Help(Box[None]):
    """All keys of a screen; any of the usual keys closes it.

    Args:
        screen: The screen whose keys are listed.
        usable: The ids of keys whose need is met now.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,f1,enter", "close", "Close", show=False)
    ]

    def __init__(self, screen: ScreenName, usable: frozenset[str]) -> None:
        super().__init__()
        self._of_screen = screen
        self._usable = usable

    def compose(self) -> ComposeResult:
        """The list in a box that scrolls."""
        width = min(86, self.app.size.width * 9 // 10 - 7)
        with VerticalScroll(id="box"):
            yield Static(listing(self._of_screen, self._usable, width), id="keys-list")

    def action_close(self) -> None:
        """Back to the screen below."""
        self.dismiss(None)


def listing(screen: ScreenName, usable: frozenset[str], width: int) -> Content:
    """Keys by group, those of the screen first; what does nothing now is dim."""
    groups = list(dict.fromkeys(key.group for key in bindings.live_on(screen)))
    keys = sorted(bindings.live_on(screen), key=lambda key: groups.index(key.group))
    parts: list[Content] = [
        Content.assemble(
            (f"Keys of {bindings.SCREEN_TITLES[screen]}", "bold"),
            ("   esc closes, PgDn shows more", "$text-muted"),
        ),
        Content(""),
    ]
    for group, members in groupby(keys, key=lambda key: key.group):
        parts.append(Content.styled(group, "bold $text-accent"))
        for key in members:
            tone = "" if key.id in usable else "$text-disabled"
            text = fill(
                key.help, width, initial_indent=f"  {key.shown:<6}", subsequent_indent=" " * 8
            )
            parts.append(Content.styled(text, tone))
        parts.append(Content(""))
    parts += [
        Content.styled(HEADS, "$text-muted"),
        Content(""),
        Content.styled(MOUSE, "$text-muted"),
    ]
    return Content("\n").join(parts)
