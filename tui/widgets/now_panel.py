"""Best, now and memory: three rows that never scroll away."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical

from autotune.units import format_bytes
from autotune.view import RunView
from tui import words
from tui.run_now import RunNow
from tui.widgets.one_line import OneLine

_BAR_CELLS = 40


class NowPanel(Vertical):
    """What is best, what runs now, and how full memory is."""

    DEFAULT_CSS = """
    NowPanel { height: auto; padding: 0 1; }
    """

    def compose(self) -> ComposeResult:
        """One row each."""
        yield OneLine(id="best")
        yield OneLine(id="now")
        yield OneLine(id="memory")

    def show_run(self, now: RunNow) -> None:
        """Brings the rows up to date."""
        self.query_one("#best", OneLine).say(f"best  {words.best(now)}")
        self.query_one("#now", OneLine).say(f"now   {words.running(now)}")
        self.query_one("#memory", OneLine).say(f"mem   {memory(now.view, self.size.width)}")


def used_bytes(view: RunView) -> int | None:
    """What the running trial occupies, or what the best one did."""
    if view.progress is not None and view.progress.memory_bytes is not None:
        return view.progress.memory_bytes
    best = view.trial(view.best.number) if view.best else None
    return best.measured.memory.total_bytes if best is not None and best.measured else None


def memory(view: RunView, width: int) -> str:
    """A bar of the memory against the limit, in words as well."""
    if view.machine is None:
        return "not known yet"
    limit_bytes = view.machine.memory_limit_bytes
    used = used_bytes(view)
    if used is None:
        return f"limit {format_bytes(limit_bytes)}"
    figures = f"{format_bytes(used)} of {format_bytes(limit_bytes)}"
    cells = max(8, min(_BAR_CELLS, width - len(figures) - 10))
    return f"{bar(used / max(1, limit_bytes), cells)} {figures}"


def bar(part: float, cells: int) -> str:
    """A bar of so many cells, filled by that part in eighths of a cell."""
    eighths = round(max(0.0, min(1.0, part)) * cells * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + " ▏▎▍▌▋▊▉"[rest].strip()).ljust(cells, "░")
