"""The application as screens see it: the run that is followed, painting it, asking its engine.

It owns no truth: `latest` is what the bridge read, `shown` what the screens show of it, and every
request goes to the engine as a control file. The run goes on whatever becomes of this process.

What reads and words a run takes as long to load as Textual itself, and is loaded behind the first
picture: nothing of it may be imported at the top of this module.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import App
from textual.filter import LineFilter
from textual.notifications import Notify
from textual.screen import Screen
from textual.timer import Timer

from autotune import control
from autotune.control import Verb
from autotune.errors import ExitCode
from autotune.run_directory import RunDirectory
from tui import bindings, clipboard, screens
from tui.ascii import AsciiFilter
from tui.colourless import Colourless
from tui.keys.key import ScreenName
from tui.owner import Choice
from tui.screens.opening import Opening
from tui.themes import THEMES, Look

if TYPE_CHECKING:
    from tui.answer.writing import Writing
    from tui.bridge import RunChanged, Watch
    from tui.run_now import RunNow
    from tui.screens.base import RunScreen
    from tui.setup.form import JobForm

PAINT_INTERVAL_S = 0.5
"""What changes by itself is painted this often at most."""
TICK_S = 1.0
QUIET_TICKS = 10
"""While speed is measured on the processor that paints, the clock moves this seldom."""


class FollowingApp(App[int]):
    """Shows one run at a time. Its result is the exit code of the process.

    Args:
        directory: The run to follow; None begins with setup.
        look: The theme.
        ascii_only: Whether nothing but ASCII may reach the terminal.
        owns_run: Whether this UI belongs to the command that started the run, so that its exit
            code is the run's even if the run ended before the UI looked.
        run_root: Where runs are kept.
        unix_time: The wall clock; tests set it.
        form: What setup begins with; None is an empty form.
        problem: What the reader should be told first.
    """

    CSS_PATH: ClassVar = ["app.tcss", *screens.stylesheets()]
    TITLE = "autotune"
    MODES: ClassVar = screens.factories()

    def __init__(
        self,
        directory: RunDirectory | None = None,
        *,
        look: Look = "dark",
        ascii_only: bool = False,
        owns_run: bool = False,
        run_root: Path = Path("autotune-runs"),
        unix_time: Callable[[], float] = time.time,
        form: JobForm | None = None,
        problem: str = "",
    ) -> None:
        super().__init__()
        for theme in THEMES.values():
            self.register_theme(theme)
        self.set_reactive(App.theme, THEMES[look].name)
        self.animation_level = "none"
        self.is_awake = False
        """Whether the first screen has come after the opening picture."""
        self.chosen_trial: int | None = None
        """Number of the trial that is looked at."""
        self.run_root = run_root
        """Where runs are kept."""
        self.now_unix_s = unix_time
        self.form = form
        """What setup begins with."""
        self.draft: JobForm | None = None
        """What somebody filled in since, and nobody has started."""
        self.is_starting = False
        """Whether that is being started now."""
        self.writing: Writing | None = None
        """Files that are being written now."""
        self._problem = problem
        self._ascii_filter = AsciiFilter(enabled=ascii_only)
        self._colourless = Colourless(self._grounds)
        self._owned = directory if owns_run else None
        self._bridge: Watch[RunNow] | None = None
        self._held: RunNow | None = None
        self._directory = directory
        self._latest: RunNow | None = None
        self._visited: list[ScreenName] = ["search" if directory is not None else "setup"]
        self._painted_s = float("-inf")
        self._num_quiet_ticks = 0
        self._paint_timer: Timer | None = None
        self._stop_asked: Verb | None = None

    # What screens ask of the app.

    @property
    def latest(self) -> RunNow:
        """The run as the bridge read it last."""
        if self._latest is None:
            from tui.run_now import RunNow

            self._latest = RunNow(directory=self._directory)
        return self._latest

    @property
    def shown(self) -> RunNow:
        """The run as screens show it: the latest, or what was there when the view was held."""
        return self._held or self.latest

    @property
    def is_view_held(self) -> bool:
        """Whether what is shown stands still."""
        return self._held is not None

    def attach(self, directory: RunDirectory) -> None:
        """Follows another run from now on."""
        from tui.bridge import watch_run

        if self._bridge is not None:
            self._bridge.close()
        self._held = None
        self.chosen_trial = None
        # What was asked of another run is not meant for this one.
        self._stop_asked = None
        self._directory, self._latest = directory, None
        self._bridge = watch_run(directory, self.post_message)
        self._bridge.open()
        self._paint()

    def ask(self, verb: Verb, text: str = "") -> bool:
        """Leaves a request for the engine; tells the user where there is nobody to ask.

        Returns:
            Whether the request was left.
        """
        directory = self.latest.directory
        if directory is None or not self.latest.is_alive:
            self.say("No engine works on this run.", is_warning=True)
            return False
        try:
            control.send(directory.control, verb, text)
        except OSError as error:
            self.say(f"The run cannot be asked: {_reason(error)}.", is_warning=True)
            return False
        return True

    def say(self, text: str, *, is_warning: bool = False) -> None:
        """Tells something for a moment, in a corner."""
        self.notify(text, severity="warning" if is_warning else "information", markup=False)

    def copy(self, text: str, what: str) -> None:
        """Copies a text through the terminal, and into the run's `last-copy.txt` in any case.

        Args:
            text: What to copy.
            what: What it is, in the words of the toast: "the command".
        """
        fits = clipboard.fits_terminal(text)
        if fits:
            self.copy_to_clipboard(text)
        told = f"Copied {what}." if fits else f"Too long for a terminal: {what}."
        if self.latest.directory is not None:
            try:
                told += f" It is also in {clipboard.keep(self.latest.directory, text)}."
            except OSError as error:
                told += f" The run's last-copy.txt cannot be written: {_reason(error)}."
        self.say(told + (clipboard.hint() if fits else ""))

    def ask_user(
        self,
        title: str,
        explanation: str,
        choices: Sequence[Choice],
        answered: Callable[[str], None],
    ) -> None:
        """Asks a question in a box; `answered` gets the id of the answer, if there is one."""
        from tui.screens.question import Question

        def done(answer: str | None) -> None:
            if answer is not None:
                answered(answer)

        self.push_screen(Question(title, explanation, choices), done)

    def on_notify(self, event: Notify) -> None:
        """What is told again takes the place of the former, before Textual adds it."""
        for told in list(self._notifications):
            if told.message == event.notification.message:
                self._unnotify(told, refresh=False)

    # Life of the application.

    def on_mount(self) -> None:
        """Puts the keys of a settings file in force."""
        if changed := bindings.keymap():
            self.set_keymap(changed)

    def get_default_screen(self) -> Screen[object]:
        """The opening picture."""
        name = self._directory.name if self._directory is not None else ""
        return cast("Screen[object]", Opening(self._visited[-1], name))

    async def on_opening_painted(self) -> None:
        """Loads the first screen behind the opening picture, shows it and follows the run."""
        await asyncio.to_thread(screens.load, self._visited[-1])
        self.is_awake = True
        if self._problem:
            self.say(self._problem, is_warning=True)
        self.switch_mode(self._visited[-1])
        self.set_interval(TICK_S, self._tick)
        if self._directory is not None:
            self.attach(self._directory)

    def on_unmount(self) -> None:
        """Ends following."""
        if self._bridge is not None:
            self._bridge.close()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's filters, or ours where no colour may be sent; and ASCII where it must be."""
        usual = [self._colourless] if self.no_color else super().get_line_filters()
        return [*usual, self._ascii_filter] if self._ascii_filter.enabled else usual

    def _grounds(self) -> tuple[str, str]:
        """The colours of the theme that tell something apart where none are sent."""
        theme = self.current_theme
        return str(theme.background), theme.variables["text-disabled"]

    def detach(self, exit_code: int) -> None:
        """Leaves, and lets the run go on."""
        self.exit(exit_code)

    @property
    def exit_code(self) -> int:
        """What the process should end with, if it ended now: the run's code, if it was watched."""
        now = self.latest
        is_own = self._owned is not None and now.directory == self._owned
        if not (now.was_alive or is_own) or now.is_alive:
            return ExitCode.OK
        if now.view.ended is not None:
            return now.view.ended.exit_code
        return ExitCode.INTERNAL if now.form == "failed" else ExitCode.OK

    # What the bridge tells, and time.

    def on_run_changed(self, message: RunChanged) -> None:
        """Takes over what the bridge read, and paints soon."""
        from autotune.display.quiet import is_quiet

        now, before = message.now, self.latest
        if now.directory != before.directory:
            return
        self._latest = now
        if before.is_alive and not now.is_alive and self._stop_asked is not None:
            self.exit(self.exit_code)
            return
        is_news = _what_counts(now) != _what_counts(before)
        if now.is_read and not before.is_read:
            self._paint()
        elif not now.is_read:
            # Half of a long journal is not worth the time that the other half needs.
            return
        # Nothing of ours repaints while speed is measured on the processor that would paint.
        elif is_news or not (is_quiet(now.view) and is_quiet(before.view)):
            self._paint_soon()

    def _paint_soon(self) -> None:
        wait_s = self._painted_s + PAINT_INTERVAL_S - asyncio.get_running_loop().time()
        if wait_s <= 0:
            self._paint()
        elif self._paint_timer is None:
            self._paint_timer = self.set_timer(wait_s, self._paint)

    def _paint(self) -> None:
        self._painted_s = asyncio.get_running_loop().time()
        if self._paint_timer is not None:
            self._paint_timer.stop()
            self._paint_timer = None
        front = self.front
        if front is not None and front.is_whole:
            front.bring_up_to_date()

    def _tick(self) -> None:
        from autotune.display.quiet import is_quiet

        self._num_quiet_ticks = self._num_quiet_ticks + 1 if is_quiet(self.latest.view) else 0
        is_time = self.latest.is_alive and self._num_quiet_ticks % QUIET_TICKS == 0
        front = self.front
        if front is not None and front.is_whole and is_time:
            front.tick()

    @property
    def front(self) -> RunScreen | None:
        """The screen in front, or the one below a question; None while the opening is shown."""
        if self.current_mode not in screens.PLACES or not self.screen_stack:
            return None
        return cast("RunScreen", self.screen_stack[0])

    @property
    def _is_asking(self) -> bool:
        """Whether a box stands over the screen in front."""
        return len(self.screen_stack) > 1

    @property
    def num_held_back(self) -> int:
        """Events that a held view does not show yet."""
        return self.latest.num_records - self._held.num_records if self._held else 0


def _what_counts(now: RunNow) -> tuple[object, ...]:
    """What is worth a new picture even where a trial's speed is being measured."""
    return now.num_records, now.is_alive, now.is_read, now.trouble, now.beginning


def _reason(error: OSError) -> str:
    """Why a file of a run could not be written."""
    is_gone = isinstance(error, FileNotFoundError)
    return "its directory is gone" if is_gone else error.strerror or str(error)
