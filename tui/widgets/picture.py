"""The pane below the trials: events in words, or one of the pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from autotune.units import format_clock
from autotune.view import RunView
from tui.pictures import best_so_far, heat_map, memory_speed
from tui.run_now import Line, RunNow
from tui.widgets.rule import Rule

PictureName: TypeAlias = Literal["events", "speed against memory", "best so far", "heat map"]
PICTURES: tuple[PictureName, ...] = get_args(PictureName)

_DRAWN: dict[PictureName, Callable[[RunView, int, int], list[Content]]] = {
    "speed against memory": memory_speed.draw,
    "best so far": best_so_far.draw,
    "heat map": heat_map.draw,
}
_PLOT_ROWS = 10
_TONES = {
    "warning_raised": "$text-warning",
    "best_changed": "bold $text",
    "confirmed": "bold $text",
    "run_ended": "bold $text",
    "trial_started": "$text-muted",
}


class Picture(Vertical):
    """Draws again only when the trials or its size changed."""

    DEFAULT_CSS = """
    Picture { height: auto; }
    Picture #drawing { height: 1fr; text-wrap: nowrap; text-overflow: ellipsis; padding: 0 1; }
    """

    def __init__(self, name: PictureName, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.picture: PictureName = name
        self._now = RunNow()
        self._drawn: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        """A rule and the picture."""
        yield Rule(self.picture)
        yield Static("", id="drawing", markup=False)

    def show(self, now: RunNow) -> None:
        """Brings the picture up to date."""
        self._now = now
        drawing = self.query_one("#drawing", Static)
        width, height = drawing.size.width, drawing.size.height
        if width < 1 or height < 1 or not self.display:
            return
        view = now.view
        subject: object = now.lines if self.picture == "events" else view.trials
        known = (view.space, view.foreseen, view.confirmed)
        drawn = (self.picture, subject, *known, width, height)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        lines = (
            _events(now.lines, height)
            if self.picture == "events"
            else _DRAWN[self.picture](now.view, width, height)
        )
        drawing.update(Content("\n").join(lines[:height]), layout=False)

    def show_other(self, name: PictureName) -> None:
        """Shows another picture in the same place."""
        self.picture = name
        self.query_one(Rule).tell(title=name)
        self.show(self._now)

    @property
    def wanted_rows(self) -> int:
        """Rows that it would fill, the rule included, where there is no want of room."""
        match self.picture:
            case "events":
                return 5
            case "heat map":
                width = max(20, self.size.width - 2)
                return min(_PLOT_ROWS, heat_map.wanted_rows(self._now.view, width)) + 1
            case _:
                return _PLOT_ROWS + 1

    def tell(self, note: str) -> None:
        """Words at the right of the rule."""
        self.query_one(Rule).tell(note)

    def on_resize(self) -> None:
        """Draws for the new size."""
        self.call_after_refresh(lambda: self.show(self._now))


def _events(lines: tuple[Line, ...], height: int) -> list[Content]:
    if not lines:
        return [Content.styled("Nothing has happened yet.", "$text-muted")]
    return [
        Content.assemble(
            (f"{format_clock(line.t_s):>7} ", "$text-muted"),
            (line.text, _TONES.get(line.kind, "$text")),
        )
        for line in reversed(lines[-height:])
    ]
