"""A live panel on the terminal: best and now always in sight. The only module that draws with rich.

It repaints at most twice a second, and only when it is called: while nobody calls it, no thread of
it runs and nothing of it disturbs a measurement.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.display import wording
from autotune.display.output import one_line
from autotune.display.quiet import is_on_cpu
from autotune.display.report import Block
from autotune.events import Record, TrialProgressed
from autotune.units import format_bytes, format_change, format_clock, format_rate, format_seconds
from autotune.view import RunView, TrialView

REPAINT_INTERVAL_S = 0.5
_NUM_EVENTS = 4
_MAX_ROWS = 15
_NARROW = 80
_BAR_WIDTH = 40

_STYLES = {
    "measured": "green",
    "failed": "red",
    "out_of_memory": "yellow",
    "timed_out": "yellow",
    "stopped": "dim",
    "running": "bold",
    "lost": "dim",
}
"""Colour only underlines what glyph and word say."""

Line: TypeAlias = tuple[str, str]
"""A text and its style."""


class RichDisplay:
    """Draws the run in place and leaves nothing behind."""

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        in_notebook: bool = False,
    ) -> None:
        self._console = console or Console(
            stderr=not in_notebook,
            force_jupyter=in_notebook,
            markup=False,
            highlight=False,
            emoji=False,
            soft_wrap=False,
        )
        self._clock = clock
        self._live: Live | None = None
        self._events: deque[Line] = deque(maxlen=_NUM_EVENTS)
        self._painted_s = float("-inf")
        self._view = RunView()

    def open(self) -> None:
        """Starts drawing below the cursor."""
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._guarded(self._live.start)

    def show(self, record: Record, view: RunView) -> None:
        """Takes the event in, and repaints if the last time is long enough ago."""
        if not isinstance(record.event, TrialProgressed):
            style = _STYLES["failed"] if record.event.kind == "warning_raised" else ""
            for line in wording.lines(record.event, view):
                self._events.append((f"{format_clock(view.clock_s(record.t_s))} {line}", style))
        self.tick(view)

    def tick(self, view: RunView) -> None:
        """Repaints if the last time is long enough ago."""
        self._view = view
        now_s = self._clock()
        if now_s - self._painted_s >= REPAINT_INTERVAL_S:
            self._painted_s = now_s
            self._guarded(self._paint)

    def say(self, text: str) -> None:
        """Writes a line above the panel, where it stays."""
        self._guarded(lambda: self._console.print(Text(one_line(text))))

    def close(self) -> None:
        """Removes the panel and shows the cursor again."""
        if self._live is not None:
            self._guarded(self._live.stop)
            self._live = None

    def _guarded(self, draw: Callable[[], None]) -> None:
        try:
            draw()
        except (OSError, ValueError):
            # The terminal hung up: there is nobody to draw for, and the run goes on.
            self._live = None

    def _paint(self) -> None:
        if self._live is not None:
            width, height = self._console.size
            self._live.update(panel(self._view, self._events, width, height), refresh=True)


def panel(view: RunView, events: deque[Line], width: int, height: int) -> RenderableType:
    """The whole picture of a run for a terminal of that size."""
    parts: list[RenderableType] = [_headline(view, width), *_best_and_now(view)]
    # Headline, best, now, memory, two rules, table head and the line below the last one.
    num_rows = min(_MAX_ROWS, height - 8 - len(events))
    if num_rows >= 1 and view.trials:
        parts += [_rule("trials", width), _table(view, num_rows, width)]
    if events and height >= 12:
        parts += [_rule("events", width), *(_line(text, style) for text, style in events)]
    return Group(*parts)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis", end="\n")


def _rule(title: str, width: int) -> Text:
    return _line(f"─ {title} ".ljust(min(width, 100) - 1, "─"), "dim")


def _headline(view: RunView, width: int) -> Text:
    parts: list[str] = [view.stage]
    if view.held:
        parts.append("held, no new trial")
    if view.trials:
        of = f" of {view.budget_trials}" if view.budget_trials else ""
        parts.append(f"trial {view.num_search_trials}{of}")
    if view.created_unix_s:
        parts.append(wording.clock(view, time.time() - view.created_unix_s))
    right = " · ".join(parts)
    left = f"autotune  {one_line(view.run)}"
    gap = max(2, min(width, 100) - 1 - len(left) - len(right))
    return _line(f"{left}{' ' * gap}{right}", "bold")


def _best_and_now(view: RunView) -> list[Text]:
    best = view.trial(view.best.number) if view.best else None
    return [
        _line(_best(best, view)),
        _line(_now(view), "bold" if view.running else ""),
        _line(_memory(best, view)),
    ]


def _best(best: TrialView | None, view: RunView) -> str:
    if best is None or best.measured is None:
        return "best  none yet"
    ratio = wording.speedup(best, view)
    change = f"  {format_change(ratio)} vs baseline" if ratio is not None else ""
    rate = format_rate(best.measured.samples_per_s)
    return f"best  #{best.number}  {best.configuration}  {rate} samples/s{change}"


def _now(view: RunView) -> str:
    if view.ended is not None:
        return "now   done"
    trial = view.running
    if trial is None:
        return f"now   {view.stage}"
    where = f"  {wording.progress(view.progress)}" if view.progress else ""
    # The last picture before the panel stands still says that it will.
    stage = view.progress.stage if view.progress else ""
    is_about_to_rest = stage in ("warm-up", "speed") or trial.purpose == "confirm"
    rests = "  (this panel rests meanwhile)" if is_about_to_rest and is_on_cpu(view) else ""
    return f"now   #{trial.number}  {trial.configuration}{where}{rests}"


def _memory(best: TrialView | None, view: RunView) -> str:
    if view.machine is None:
        return "mem   not known yet"
    limit_bytes = view.machine.memory_limit_bytes
    used = view.progress.memory_bytes if view.progress else None
    if used is None and best is not None and best.measured is not None:
        used = best.measured.memory.total_bytes
    if used is None:
        return f"mem   limit {format_bytes(limit_bytes)}"
    filled = min(_BAR_WIDTH, round(_BAR_WIDTH * used / max(1, limit_bytes)))
    bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
    return f"mem   {bar} {format_bytes(used)} of {format_bytes(limit_bytes)}"


def _table(view: RunView, num_rows: int, width: int) -> Table:
    is_wide = width >= _NARROW
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("configuration", no_wrap=True, overflow="ellipsis")
    table.add_column("samples/s", justify="right", no_wrap=True)
    table.add_column("peak", justify="right", no_wrap=True)
    if is_wide:
        table.add_column("step", justify="right", no_wrap=True)
    table.add_column("vs base", justify="right", no_wrap=True)
    for trial in fastest_first(view)[:num_rows]:
        measured = trial.measured
        ratio = wording.speedup(trial, view)
        cells = [
            str(trial.number),
            wording.state(trial),
            str(trial.configuration),
            format_rate(measured.samples_per_s) if measured else "–",
            format_bytes(measured.memory.total_bytes) if measured else "–",
        ]
        if is_wide:
            cells.append(format_seconds(measured.speed.step_s) if measured else "–")
        cells.append(format_change(ratio) if ratio is not None else "–")
        table.add_row(*(Text(cell, style=_STYLES[trial.state]) for cell in cells))
    return table


def fastest_first(view: RunView) -> list[TrialView]:
    """The running trial, then measured ones from the fastest down, then the others, newest first.

    Confirmation measures known configurations again and is told by the headline alone.
    """
    trials = [t for t in view.trials if not t.is_repeat or t.state == "running"]
    return sorted(
        trials,
        key=lambda t: (
            t.outcome is not None,
            t.measured is None,
            -t.measured.samples_per_s if t.measured else -t.number,
        ),
    )


_TONES = {"": "", "good": "green", "bad": "red", "strong": "bold", "dim": "dim"}


def print_report(blocks: Iterable[Block], console: Console | None = None) -> None:
    """Prints a result to stdout, in colour and as wide as the terminal.

    Args:
        blocks: The result.
        console: Where to print; None is stdout.
    """
    console = console or Console(markup=False, highlight=False, emoji=False)
    for number, block in enumerate(blocks):
        if number:
            console.print()
        if block.title:
            console.print(Text(block.title, style="bold"))
        if block.rows:
            table = Table(
                box=None, pad_edge=False, show_header=bool(block.head), padding=(0, 2, 0, 0)
            )
            for index in range(len(block.rows[0])):
                table.add_column(
                    block.head[index] if block.head else "",
                    justify="right" if index in block.right else "left",
                    header_style="dim",
                )
            for row in block.rows:
                table.add_row(*(Text(cell.text, style=_TONES[cell.tone]) for cell in row))
            console.print(table)
        for line in block.lines:
            console.print(Text(line.text, style=_TONES[line.tone]))
