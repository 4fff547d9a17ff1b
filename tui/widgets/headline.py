"""The first row of every screen: what, where, in which state."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.content import Content

from autotune.display.output import one_line
from tui import words
from tui.run_now import RunNow
from tui.widgets.one_line import OneLine, spread

if TYPE_CHECKING:
    from tui.app import AutotuneApp


class Headline(OneLine):
    """Program, screen and run on the left, the run's state on the right."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._last: tuple[RunNow, str] | None = None

    def show_run(self, now: RunNow, title: str) -> None:
        """Shows where the run stands. Call again as time goes by."""
        self._last = (now, title)
        width = self.size.width
        if not width:
            return
        app = cast("AutotuneApp", self.app)
        held = f"HELD {app.num_held_back} new" if app.is_view_held else ""
        left, right = headline(now, title, width, app.now_unix_s(), held)
        text = spread(left, right, width - 2)
        at = text.rfind(right) if right else len(text)
        self.say(
            Content.assemble(f" {text[:at]}", (text[at:], f"bold {words.state_tone(now)}"), " ")
        )

    def on_resize(self) -> None:
        """Spreads both ends over the new width."""
        if self._last is not None:
            self.show_run(*self._last)


def headline(now: RunNow, title: str, width: int, now_unix_s: float, held: str) -> tuple[str, str]:
    """Both ends of the first row, shortened to what a width holds."""
    count, clock = words.trial_count(now), words.clock(now, now_unix_s)
    left_s = words.time_left(now, now_unix_s)
    no_new = "no new trials" if now.view.held and now.is_alive else ""
    parts = [held, words.state(now), no_new, count, clock]
    if width >= 132:
        parts.append(left_s)
    parts = [part for part in parts if part]
    # What matters least stands last.
    keep = 2 if held or no_new else 1
    while len(parts) > keep and len(" · ".join(parts)) > max(20, width - 30):
        parts.pop()
    right = " · ".join(parts)
    left = f"{title}  {one_line(now.name)}".rstrip()
    with_program = f"autotune  {left}"
    is_room = len(with_program) + len(right) + 4 <= width
    return with_program if is_room else left, right
