"""The first picture: the frame with the run's name, while everything behind it is being loaded.

Reading a journal needs modules that take as long to load as all of Textual. Nobody should look at
an empty terminal meanwhile.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Static

from tui import bindings
from tui.keys.key import ScreenName


class Opening(Screen[None]):
    """Header and footer as the first screen will have them; says when it was painted.

    Args:
        first: The screen that comes next.
        name: The run's name; empty where there is none.
    """

    class Painted(Message):
        """The picture is on its way to the terminal."""

    def __init__(self, first: ScreenName, name: str) -> None:
        super().__init__()
        self._first: ScreenName = first
        self._run_name = name

    def compose(self) -> ComposeResult:
        """Two rows."""
        title = bindings.SCREEN_TITLES[self._first]
        keys = "  ".join(f"{key.shown} {key.label}" for key in bindings.in_footer(self._first))
        yield Static(f" autotune  {title}  {self._run_name}", id="opening-head", markup=False)
        yield Static(" opening …", id="opening-body", markup=False)
        yield Static(f" {keys}", id="opening-keys", markup=False)

    def on_mount(self) -> None:
        """Tells the app once the picture is there."""
        self.call_after_refresh(self.post_message, self.Painted())
