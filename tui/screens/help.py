"""`?`: the keys that do something on the screen below, by group."""

from __future__ import annotations

from itertools import groupby

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from tui import bindings
from tui.bindings import Key, ScreenName

HEADS = (
    "mbs is the micro-batch size, acc the accumulation steps, ckpt the checkpointing, sgd the local "
    "SGD steps, peak the memory at its highest, ± half of the 95 % interval."
)
MOUSE = "Rows, heads and footer can be clicked. Shift and drag selects text, as without a program."


class Help(ModalScreen[None]):
    """All keys of a screen; any of the usual keys closes it.

    Args:
        screen: The screen whose keys are listed.
        usable: The ids of keys whose need is met now.
    """

    BINDINGS = [Binding("escape,question_mark,q,f1,enter", "close", "Close", show=False)]

    def __init__(self, screen: ScreenName, usable: frozenset[str]) -> None:
        super().__init__()
        self._name = screen
        self._usable = usable

    def compose(self) -> ComposeResult:
        """The list in a box that scrolls."""
        with VerticalScroll(id="box"):
            yield Static(listing(self._name, self._usable), id="keys-list")

    def action_close(self) -> None:
        """Back to the screen below."""
        self.dismiss(None)


def listing(screen: ScreenName, usable: frozenset[str]) -> Content:
    """Keys by group, as the table orders them; those that do nothing now are dim."""
    keys = sorted(bindings.live_on(screen), key=lambda key: _rank(key, screen))
    parts: list[Content] = [
        Content.styled(f"Keys of {bindings.SCREEN_TITLES[screen]}", "bold"),
        Content(""),
    ]
    for group, members in groupby(keys, key=lambda key: key.group):
        parts.append(Content.styled(group, "bold $text-accent"))
        for key in members:
            tone = "" if key.id in usable else "$text-disabled"
            parts.append(Content.styled(f"  {key.shown:<5}{key.help}", tone))
        parts.append(Content(""))
    parts += [Content.styled(HEADS, "$text-muted"), Content(""), Content.styled(MOUSE, "$text-muted")]
    return Content("\n").join(parts)


def _rank(key: Key, screen: ScreenName) -> tuple[int, int]:
    groups = list(dict.fromkeys(k.group for k in bindings.live_on(screen)))
    return groups.index(key.group), bindings.TABLE.index(key)
