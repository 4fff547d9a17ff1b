"""What every screen has: a header of one row, a body, a footer of one row, a card if it is tiny.

A screen fills in three things: `NAME`, `compose_body` and `show_run`. The app calls `show_run` on
the screen in front, never more than twice a second, whenever the run is another one than the screen
has seen; never while the view is held or a trial's speed is measured on the processor that draws.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import Resize
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from tui import bindings
from tui.keys.key import Key, Needs, ScreenName
from tui.owner import Owner
from tui.run_now import RunNow
from tui.widgets.headline import Headline
from tui.widgets.key_bar import KeyBar
from tui.widgets.status_card import StatusCard, best_and_now

_LEAST_COLUMNS, _LEAST_ROWS = 60, 16
WIDTHS = [(0, "-card"), (_LEAST_COLUMNS, "-narrow"), (80, "-normal"), (132, "-wide")]
"""Columns from which on a screen has that class."""
HEIGHTS = [(0, "-flat"), (_LEAST_ROWS, "-short"), (24, "-medium"), (30, "-tall")]
"""Rows from which on a screen has that class. Below 60x16 there is one status card alone."""


class RunScreen(Screen[None]):
    """A screen that shows a run.

    A subclass declares `BINDINGS = bindings.of(NAME)`; their verbs are its `action_…` methods.
    """

    NAME: ClassVar[ScreenName]
    LEAVING_A_FIELD: ClassVar[str] = "esc leaves the field"
    """What the footer says while somebody types."""
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS
    AUTO_FOCUS = ""

    def __init__(self) -> None:
        super().__init__()
        self._shown: RunNow | None = None
        self._hidden: Widget | None = None
        """What had the keyboard before the window became too small for it."""

    def compose(self) -> ComposeResult:
        """The frame around the body."""
        yield Headline(id="headline")
        with Vertical(id="body"):
            yield from self.compose_body()
        yield StatusCard(id="card")
        yield KeyBar(id="keys")

    @abstractmethod
    def compose_body(self) -> Iterable[Widget]:
        """The widgets between header and footer."""

    @abstractmethod
    def show_run(self, now: RunNow) -> None:
        """Brings the body up to date, whatever form the run has.

        `now` is immutable: what was shown last may be kept and compared. Called first when the
        screen is mounted, and again whenever it comes to the front.
        """

    def glance(self, now: RunNow, width: int) -> Sequence[str]:
        """Two or three rows that say what matters most, for a window too small for the screen."""
        return best_and_now(now, width)

    @property
    def owner(self) -> Owner:
        """The app, with its own methods: `ask`, `copy`, `go`, `open_trial`, `attach`."""
        return cast("Owner", self.app)

    @property
    def now(self) -> RunNow:
        """The run as it is shown; while the view is held, as it was then."""
        return self.owner.shown

    @property
    def is_whole(self) -> bool:
        """Whether its widgets are all there.

        A screen that closes with the app counts as mounted when some of them are gone already.
        """
        return self.is_mounted and self.app.is_running

    def every_second(self, show: Callable[[], None]) -> None:
        """Calls `show` once a second, as long as the screen is whole."""
        self.set_interval(1.0, lambda: show() if self.is_whole else None)

    def bring_up_to_date(self) -> None:
        """Shows the run, if it is another one than this screen has seen."""
        now = self.now
        self.query_one(Headline).show_run(now, self.title_text())
        self.query_one(StatusCard).show_run(now, self.glance)
        if now is not self._shown:
            self._shown = now
            self.show_run(now)
            self.bring_keys_up_to_date()

    def bring_keys_up_to_date(self) -> None:
        """Shows which keys do something now."""
        is_typing = isinstance(self.focused, Input)
        keys = (bindings.while_typing if is_typing else bindings.in_footer)(self.NAME)
        note = f"typing · {self.LEAVING_A_FIELD}" if is_typing else ""
        self.query_one(KeyBar).show(tuple(filter(self.is_of_use, keys)), note)

    def on_descendant_focus(self) -> None:
        """Letters are no keys while they are typed into a field."""
        if self.is_whole:
            self.bring_keys_up_to_date()

    def on_descendant_blur(self) -> None:
        """Letters may be keys again."""
        if self.is_whole:
            self.bring_keys_up_to_date()

    def on_resize(self, event: Resize) -> None:
        """Gives the keyboard back to what had it, where a card stood in its place meanwhile."""
        columns, rows = event.size
        if columns < _LEAST_COLUMNS or rows < _LEAST_ROWS:
            self._hidden = self.focused or self._hidden
        elif self._hidden is not None:
            hidden, self._hidden = self._hidden, None
            self.call_after_refresh(self._focus_again, hidden)

    def _focus_again(self, widget: Widget) -> None:
        if self.is_whole and self.focused is None and widget.is_attached:
            # As after another window: what is typed goes on where it was.
            self.set_focus(widget, scroll_visible=False, from_app_focus=True)

    def close_part(self) -> bool:
        """Closes what lies over the screen, such as a filter; esc asks for this first.

        Returns:
            Whether there was something to close.
        """
        return False

    def paged(self) -> Iterable[Widget]:
        """What PgDn and PgUp scroll, whatever has the keyboard."""
        return ()

    def action_page(self, by: int) -> None:
        """Scrolls by pages."""
        for widget in self.paged():
            rows = max(1, widget.size.height - 1)
            widget.scroll_relative(y=by * rows, animate=False, force=True)

    def tick(self) -> None:
        """A second went by. The header's clock goes on; a subclass may add a line of its own."""
        self.query_one(Headline).show_run(self.now, self.title_text())
        self.query_one(StatusCard).show_run(self.now, self.glance)

    def title_text(self) -> str:
        """What the header calls this screen."""
        return bindings.SCREEN_TITLES[self.NAME]

    def has(self, needs: Needs) -> bool:
        """Whether what a key needs is there."""
        latest = self.owner.latest
        match needs:
            case "nothing":
                return True
            case "run":
                return latest.directory is not None
            case "engine":
                return latest.is_alive
            case "trial":
                return self.trial_number is not None
            case _:
                return False

    def is_of_use(self, key: Key) -> bool:
        """Whether a key does something now."""
        return self.has(key.needs) and self.has(key.wants)

    @property
    def trial_number(self) -> int | None:
        """Number of the trial that keys of this screen mean; None where there is none."""
        return self.owner.chosen_trial

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys whose need is not met do nothing, and no footer names them."""
        keys = bindings.keys_of(self.NAME)
        key = next((key for key in keys if key.verb.partition("(")[0] == f"screen.{action}"), None)
        return True if key is None or self.has(key.needs) else None

    def on_mount(self) -> None:
        """Shows what is known already."""
        self.bring_up_to_date()

    def on_screen_resume(self) -> None:
        """Shows what happened while another screen was in front."""
        if self.is_whole:
            self.bring_up_to_date()
