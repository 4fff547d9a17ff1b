"""Screen 3: the search as it goes on. Best and now never scroll away."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from tui import bindings
from tui.run_now import RunNow
from tui.screens.base import RunScreen
from tui.widgets.now_panel import NowPanel


class SearchScreen(RunScreen):
    """Trials, pictures and events of a run."""

    NAME = "search"
    BINDINGS = bindings.of("search")

    def compose_body(self) -> Iterable[Widget]:
        """From the top: best and now, trials, a picture."""
        yield NowPanel()

    def show_run(self, now: RunNow) -> None:
        """Brings every part up to date."""
        self.query_one(NowPanel).show_run(now)
