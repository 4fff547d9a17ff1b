"""Best, now and memory: rows that never scroll away."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from autotune.units import format_bytes
from autotune.view import RunView
from tui import words
from tui.pictures import best_so_far
from tui.pictures.bars import bar
from tui.run_now import RunNow
from tui.trials import readings
from tui.widgets.one_line import OneLine
from tui.widgets.rows import hanging, stacked

_BAR_CELLS = 40


class NowPanel(Vertical):
    """What is best, what runs now, and how full memory is."""

    DEFAULT_CSS = """
    NowPanel { height: auto; padding: 0 1; }
    NowPanel #remedy { color: $text-warning; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._now: RunNow | None = None
        self._gain_of: tuple[object, int] = ((), -1)
        self._remedy_of = ("", -1)
        self._num_remedy_rows = 0

    def compose(self) -> ComposeResult:
        """One row each."""
        yield OneLine(id="best")
        yield OneLine(id="now")
        yield OneLine(id="memory")
        yield OneLine(id="so-far")
        yield Static("", id="remedy", markup=False)

    def show_run(self, now: RunNow) -> None:
        """Brings the rows up to date."""
        self._now = now
        self.query_one("#best", OneLine).say(f"best  {words.best(now, self.size.width - 8)}")
        self.query_one("#now", OneLine).say(f"now   {words.running(now)}")
        self.query_one("#memory", OneLine).say(memory(now.view, self.size.width))
        self._show_gain(now.view)
        self._show_remedy(words.what_to_do(now))

    @property
    def num_remedy_rows(self) -> int:
        """Rows that the remedy takes, before they are laid out as well."""
        return self._num_remedy_rows

    def _show_remedy(self, remedy: str) -> None:
        """What to do next, whole: nobody can type a command of which the end is missing."""
        if (remedy, self.size.width) == self._remedy_of:
            return
        self._remedy_of = (remedy, self.size.width)
        place = self.query_one("#remedy", Static)
        place.display = bool(remedy)
        rows = hanging("fix   ", remedy, max(20, self.size.width - 2))
        place.styles.height = len(rows)
        self._num_remedy_rows = len(rows) if remedy else 0
        place.update(stacked(rows))

    def _show_gain(self, view: RunView) -> None:
        width = self.size.width
        if (view.trials, width) == self._gain_of:
            return
        self._gain_of = (view.trials, width)
        spark, note = best_so_far.one_line(view, min(60, width - 10))
        self.query_one("#so-far", OneLine).say(
            Content.assemble("gain  ", (spark, "$text-primary"), note)
        )

    def on_resize(self) -> None:
        """Fits the bars to the new width."""
        if self._now is not None:
            self.show_run(self._now)


def used_bytes(view: RunView) -> tuple[int, int] | None:
    """What the running trial occupies, or else what the best one did; and its number."""
    progress = view.progress
    if progress is not None and progress.memory_bytes is not None:
        return progress.memory_bytes, progress.number
    best = readings.best(view)
    found = readings.shown(best, view) if best is not None else None
    return (found.memory.total_bytes, best.number) if best is not None and found else None


def memory(view: RunView, width: int) -> Content:
    """A bar of the memory against the limit, in words as well."""
    if view.machine is None:
        return Content("mem   not known yet")
    limit_bytes = view.machine.memory_limit_bytes
    known = used_bytes(view)
    if known is None:
        return Content(f"mem   limit {format_bytes(limit_bytes)}")
    used, number = known
    figures = f"#{number} {format_bytes(used)}, limit {format_bytes(limit_bytes)}"
    cells = max(8, min(_BAR_CELLS, width - len(figures) - 10))
    tone = "$text-primary" if used <= view.machine.usable_bytes else "$text-warning"
    filled = (bar(used / max(1, limit_bytes), cells), tone)
    return Content.assemble("mem   ", filled, f" {figures}")
