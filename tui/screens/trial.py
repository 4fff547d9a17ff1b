"""Screen 4: one trial, what happened and what it means."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from tui import bindings
from tui.run_now import RunNow
from tui.screens.base import RunScreen
from tui.widgets.now_panel import NowPanel


class TrialScreen(RunScreen):
    """Everything that is known of a trial."""

    NAME = "trial"
    BINDINGS = bindings.of("trial")

    def compose_body(self) -> Iterable[Widget]:
        """From the top: head, tabs, text."""
        yield NowPanel()

    def show_run(self, now: RunNow) -> None:
        """Brings every part up to date."""
        self.query_one(NowPanel).show_run(now)
