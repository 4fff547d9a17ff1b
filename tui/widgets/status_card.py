"""All that matters in a window that holds nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from rich.cells import cell_len
from textual.widgets import Static

from autotune.display.output import one_line
from tui import words
from tui.owner import Clock
from tui.run_now import RunNow
from tui.widgets.rows import padded

Glance: TypeAlias = Callable[[RunNow, int], Sequence[str]]
"""What a screen would show of a run in two or three rows of a width."""


class StatusCard(Static):
    """State, and what the screen shows at a glance, for terminals below 60 columns or 16 rows."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._last: tuple[RunNow, Glance] | None = None
        self._said = ""

    def show_run(self, now: RunNow, glance: Glance) -> None:
        """Draws again where the card is in sight.

        Args:
            now: The run.
            glance: The rows of the screen that stands behind it, for a width.
        """
        self._last = (now, glance)
        # What is inside of the padding.
        width = self.content_size.width
        if not self.display or not width:
            return
        rows = glance(now, width)
        text = "\n".join(card(now, rows, cast("Clock", self.app).now_unix_s(), width))
        if text != self._said:
            self._said = text
            self.update(text, layout=False)

    def on_resize(self) -> None:
        """Fits the rows to the new width."""
        if self._last is not None:
            self.show_run(*self._last)


def card(now: RunNow, glance: Sequence[str], now_unix_s: float, width: int) -> list[str]:
    """The rows of the card, none wider than `width`."""
    parts = (words.state(now), words.trial_count(now), words.clock(now, now_unix_s))
    rows = [
        " · ".join(part for part in parts if part),
        *glance,
        one_line(now.name),
        "This screen needs 60x16; q leaves.",
    ]
    return [row if cell_len(row) <= width else padded(row, width) for row in rows]


def best_and_now(now: RunNow, width: int) -> list[str]:
    """What a run shows at a glance."""
    return [f"best  {words.best(now, width - 6)}", f"now   {words.running(now)}"]
