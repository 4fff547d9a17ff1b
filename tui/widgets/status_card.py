"""All that matters in a window that holds nothing else."""

from __future__ import annotations

from typing import cast

from textual.widgets import Static

from autotune.display.output import one_line
from tui import words
from tui.owner import Clock
from tui.run_now import RunNow


class StatusCard(Static):
    """State, best and now, one a row, for terminals below 60 columns or 16 rows."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._last: RunNow | None = None
        self._said = ""

    def show_run(self, now: RunNow) -> None:
        """Draws again where the card is in sight."""
        self._last = now
        if not self.display or not self.size.width:
            return
        text = "\n".join(card(now, cast("Clock", self.app).now_unix_s(), self.size.width))
        if text != self._said:
            self._said = text
            self.update(text, layout=False)

    def on_resize(self) -> None:
        """Fits the rows to the new width."""
        if self._last is not None:
            self.show_run(self._last)


def card(now: RunNow, now_unix_s: float, width: int) -> list[str]:
    """The rows of the card, none wider than `width`."""
    rows = [
        " · ".join(
            part
            for part in (
                words.state(now),
                words.trial_count(now),
                words.clock(now, now_unix_s),
            )
            if part
        ),
        f"best  {words.best(now)}",
        f"now   {words.running(now)}",
        one_line(now.name),
        "From 60x16 on all is shown; q leaves.",
    ]
    return [row if len(row) <= width else row[: max(0, width - 1)] + "…" for row in rows]
