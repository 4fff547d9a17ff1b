"""One line an event: for logs, pipes, CI and terminals that cannot repaint."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune.display import output, wording
from autotune.events import Record, TrialProgressed
from autotune.units import format_clock
from autotune.view import RunView

PROGRESS_INTERVAL_S = 5.0
"""Progress gets a line this often at most."""


class PlainDisplay:
    """Writes lines without escapes, carriage returns or wrapping."""

    def __init__(self, write: Callable[[str], None] = output.talk) -> None:
        self._write = write
        self._last_progress_s = time.monotonic()

    def open(self) -> None:
        """Nothing to prepare."""

    def show(self, record: Record, view: RunView) -> None:
        """Writes the event's lines; of progress only what is worth one."""
        if isinstance(record.event, TrialProgressed):
            now_s = time.monotonic()
            if now_s - self._last_progress_s < PROGRESS_INTERVAL_S:
                return
            self._last_progress_s = now_s
        for line in wording.lines(record.event, view):
            self._write(f"{format_clock(view.clock_s(record.t_s))} {line}")

    def tick(self, view: RunView) -> None:
        """A line is written when something happens, and only then."""

    def say(self, text: str) -> None:
        """Writes a line."""
        self._write(text)

    def close(self) -> None:
        """Nothing to give back."""
