"""What every display offers, and which one is chosen."""

from __future__ import annotations

import os
import sys
from typing import Protocol

from autotune.display import DisplayName, output
from autotune.events import Record
from autotune.view import RunView


class Display(Protocol):
    """Shows a run on stderr.

    One thread calls the methods: `open`, then any of `show`, `tick` and `say`, then `close`. Nobody
    calls `show` with progress, or `tick`, while a trial's speed is measured on a CPU.
    """

    def open(self) -> None:
        """Takes the screen."""

    def show(self, record: Record, view: RunView) -> None:
        """Something happened; `view` is the run with the record applied."""

    def tick(self, view: RunView) -> None:
        """Nothing happened for a moment."""

    def say(self, text: str) -> None:
        """Tells the reader something that is no event of the run."""

    def close(self) -> None:
        """Gives the screen back as it was. May be called twice, and after the terminal is gone."""


def choose(wanted: DisplayName) -> Display:
    """The display that was asked for; auto is rich on a terminal that can, outside of CI.

    Rich is never started blind: where nothing can be repainted, lines are written.
    """
    can_repaint = output.is_terminal(sys.stderr) and os.environ.get("TERM", "") not in ("", "dumb")
    if wanted == "rich" or (wanted == "auto" and not os.environ.get("CI")):
        wanted = "rich" if can_repaint else "plain"
    if wanted == "rich":
        from autotune.display.rich import RichDisplay

        return RichDisplay()
    if wanted in ("plain", "auto"):
        from autotune.display.plain import PlainDisplay

        return PlainDisplay()
    from autotune.display.none import NoDisplay

    return NoDisplay()
