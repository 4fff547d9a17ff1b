"""What a child does for a screen, for how long, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Iterable

from textual.containers import Container
from textual.content import Content
from textual.widget import Widget

from autotune.display.output import one_line
from tui.widgets.one_line import OneLine
from tui.widgets.page import Page
from tui.widgets.rows import hanging, mark


class Doing(Container):
    """One row while something goes on; what came of it stays to be read until the next begins."""

    DEFAULT_CSS = """
    Doing { height: auto; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._what = ""
        self._since_s = 0.0
        self._has_said = False

    def compose(self) -> Iterable[Widget]:
        """The row, and the rows of the result."""
        yield OneLine(id="doing")
        yield Page(id="result")

    @property
    def is_busy(self) -> bool:
        """Whether something goes on."""
        return bool(self._what)

    def begin(self, what: str) -> None:
        """Something begins."""
        self._what, self._since_s = what, time.monotonic()
        self.show()

    def end(self) -> None:
        """It is over."""
        self._what = ""
        self.show()

    def say(self, text: str, *, is_fine: bool) -> None:
        """Tells how something ended; an empty text tells nothing."""
        self._has_said = bool(text)
        head = Content.assemble(" ", mark("ok" if is_fine else "wrong"), " ")
        width = max(20, self.screen.size.width - 2)
        self.query_one("#result", Page).show(hanging(head, one_line(text), width))
        self.show()

    def forget(self) -> None:
        """What was said is about something else."""
        self._has_said = False

    def show(self) -> None:
        """Shows how long it has gone on by now."""
        line = self.query_one("#doing", OneLine)
        line.display = self.is_busy
        if self.is_busy:
            waited_s = int(time.monotonic() - self._since_s)
            line.say(Content.assemble(" ", mark("asking"), f" {self._what}, {waited_s} s"))
        self.query_one("#result", Page).display = self._has_said and not self.is_busy
        self.display = self.is_busy or self._has_said
