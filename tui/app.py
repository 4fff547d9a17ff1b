"""What the keys of every screen do: go, hold, ask the engine, leave.

Boxes and words are loaded when they are first needed: the first picture should not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar

from textual.app import SystemCommand
from textual.screen import Screen

from autotune.control import Verb
from autotune.errors import ExitCode
from tui import bindings, screens
from tui.following import FollowingApp
from tui.keys.key import ScreenName
from tui.owner import Choice
from tui.themes import THEMES, Look

if TYPE_CHECKING:
    from textual.command import Provider

    from autotune.outcome import Purpose

_LONGEST_WAY_BACK = 20


def _commands() -> type[Provider]:
    from tui.palette import KeyCommands

    return KeyCommands


class AutotuneApp(FollowingApp):
    """Shows a run and steers it."""

    BINDINGS = bindings.of(None)
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_commands}

    def open_trial(self, number: int, *, log: bool = False) -> None:
        """Goes to the screen of a trial, and to its log where that is wanted."""
        self.chosen_trial = number
        self.action_go("trial")
        if log:
            from tui.screens.trial import TrialScreen

            def show_log() -> None:
                if isinstance(self.front, TrialScreen):
                    self.front.show_log()

            self.call_after_refresh(show_log)

    def action_go(self, name: ScreenName) -> None:
        """Goes to a screen."""
        if name in screens.PLACES and not self._is_asking and name != self._visited[-1]:
            self._visited = [*self._visited, name][-_LONGEST_WAY_BACK:]
            if self.is_awake:
                self.switch_mode(name)

    def action_go_back(self) -> None:
        """Closes what lies over the screen, or goes back to the screen before, if there is one."""
        front = self.front
        if front is None or self._is_asking or front.close_part():
            return
        if len(self._visited) > 1:
            self._visited.pop()
            self.switch_mode(self._visited[-1])

    def action_hold_view(self) -> None:
        """Holds what is shown, or lets it go on."""
        self._held = None if self._held is not None else self.latest
        self._paint()

    def action_hold_run(self) -> None:
        """Asks for no new trial, or for new ones again."""
        held = self.latest.view.held
        if self.ask("resume" if held else "hold"):
            self.say("Trials go on." if held else "No new trial after the running one.")

    def action_stop_trial(self) -> None:
        """Asks whether the running trial should end, and asks the engine for it."""
        trial = self.latest.view.running
        if trial is None:
            self.say("No trial is running.")
            return
        number = trial.number

        def answered(answer: str) -> None:
            running = self.latest.view.running
            if answer == "stop" and (running is None or running.number != number):
                self.say(f"Trial {number} ended meanwhile.")
            elif answer == "stop" and self.ask("stop_trial"):
                self.say(f"Trial {number} is being stopped.")

        self.ask_user(
            f"Stop trial {number}, {trial.configuration}?",
            "It counts as stopped, and the run goes on with the next one.",
            (
                Choice(id="back", key="b", text="Back: let it run"),
                Choice(id="stop", key="s", text="Stop this trial"),
            ),
            answered,
        )

    def action_note(self) -> None:
        """Asks for a note and writes it into the run."""
        from tui.screens.prompt import Prompt

        if not self.latest.is_alive:
            self.say("No engine works on this run, and notes are written by it.", is_warning=True)
            return

        def written(text: str | None) -> None:
            if text and self.ask("note", text):
                self.say("The note is in the run.")

        self.push_screen(
            Prompt("A note for this run", hint="enter keeps it · esc goes back"), written
        )

    def action_other_theme(self) -> None:
        """Changes between dark and light."""
        other: Look = "light" if self.theme == THEMES["dark"].name else "dark"
        self.theme = THEMES[other].name

    def action_help(self) -> None:
        """Lists the keys of the screen in front."""
        from tui.screens.help import Help

        front = self.front
        if front is not None and not self._is_asking:
            usable = filter(front.is_of_use, bindings.live_on(front.NAME))
            self.push_screen(Help(front.NAME, frozenset(key.id for key in usable)))

    def action_leave(self) -> None:
        """Leaves at once where no run goes on and nothing would be lost; asks otherwise."""
        from tui.screens.question import LeaveQuestion

        if not self.latest.is_alive:
            self._leave(self.exit_code)
        elif not self._is_asking:
            self.push_screen(LeaveQuestion(running=self._running_for), self._left)

    @property
    def _running_for(self) -> Purpose | None:
        running = self.latest.view.running
        return running.purpose if running is not None else None

    def action_interrupt(self) -> None:
        """As leave; where that was asked before, leaves or stops now."""
        from tui.screens.question import LeaveQuestion

        if not self.latest.is_alive:
            is_without = self.latest.directory is None
            self._leave(ExitCode.INTERRUPTED if is_without else self.exit_code)
        elif isinstance(self.screen, LeaveQuestion):
            self.screen.dismiss("stop_now")
        elif self._stop_asked is not None:
            self._left("stop_now")
        else:
            while self._is_asking:
                self.pop_screen()
            self.action_leave()

    def _leave(self, code: int) -> None:
        """Leaves, after a question where files are being written or a form would be lost."""
        from tui.screens.question import FormQuestion, WritingQuestion

        is_nothing_lost = self.draft is None and self.writing is None
        if is_nothing_lost or isinstance(self.screen, FormQuestion | WritingQuestion):
            self.exit(code)
            return
        while self._is_asking:
            self.pop_screen()

        def answered(answer: str | None) -> None:
            if answer == "leave":
                self.exit(code)

        self.push_screen(
            WritingQuestion(self.writing.place)
            if self.writing is not None
            else FormQuestion(is_starting=self.is_starting),
            answered,
        )

    async def action_quit(self) -> None:
        """As interrupt: Textual's own way out must not pass over the question."""
        self.action_interrupt()

    def _left(self, answer: str | None) -> None:
        match answer:
            case "detach":
                # The run may have ended while the question stood there.
                self.detach(self.exit_code)
            case "stop" | "stop_now":
                verb: Verb = "stop" if answer == "stop" else "stop_now"
                if self.ask(verb, "SIGINT"):
                    self._stop_asked = verb
                    what = "measurement" if self._running_for == "confirm" else "trial"
                    self.say(
                        f"Stopping after this {what}. {bindings.shown('interrupt')} stops now."
                        if verb == "stop"
                        else "Stopping now, finished trials are kept."
                    )
                    if self._bridge is not None:
                        self._bridge.look_now()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the palette offers: every key of the screen in front, and every trial."""
        from tui.trials import columns

        front = self.front
        if front is None:
            return
        for key in bindings.live_on(front.NAME):
            if front.is_of_use(key) and key.id != "palette":
                yield SystemCommand(key.label, f"{key.help} ({key.shown})", self._runner(key.verb))
        view = self.latest.view
        for trial in view.trials:
            yield SystemCommand(
                f"#{trial.number} {trial.configuration}",
                f"Open trial {trial.number}: {columns.state(trial, view)}.",
                self._opener(trial.number),
                discover=False,
            )

    def _runner(self, verb: str) -> Callable[[], None]:
        def run() -> None:
            front = self.front
            if front is not None:
                self.call_later(front.run_action, verb)

        return run

    def _opener(self, number: int) -> Callable[[], None]:
        return lambda: self.open_trial(number)
