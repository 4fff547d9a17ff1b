"""Screen 4: one trial, what happened and what it means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Input

from tui import bindings
from tui.keys.key import Needs
from tui.run_now import RunNow
from tui.screens.base import RunScreen
from tui.screens.copy_trial import CopyTrial
from tui.trials import readings, story
from tui.widgets.now_panel import NowPanel
from tui.widgets.trial_detail import TrialDetail


class TrialScreen(CopyTrial, RunScreen):
    """Everything that is known of a trial."""

    NAME = "trial"
    BINDINGS = bindings.of("trial")

    def compose_body(self) -> Iterable[Widget]:
        """Best and now where there is room, and the trial."""
        yield NowPanel()
        yield Input(placeholder="words to find in the log", id="find", compact=True)
        yield TrialDetail()

    @property
    def detail(self) -> TrialDetail:
        """The trial."""
        return self.query_one(TrialDetail)

    @property
    def trial_number(self) -> int | None:
        """The chosen trial; without a choice, what runs, what is best, or the last one."""
        view = self.now.view
        chosen = self.owner.chosen_trial
        if chosen is not None and view.trial(chosen) is not None:
            return chosen
        candidates = (
            view.running,
            readings.best(view),
            view.trials[-1] if view.trials else None,
        )
        return next((trial.number for trial in candidates if trial is not None), None)

    def bring_up_to_date(self) -> None:
        """Shows the trial that was chosen on another screen, though the run is the same."""
        if self.detail.number != self.trial_number:
            self._shown = None
        super().bring_up_to_date()

    def title_text(self) -> str:
        """With the trial's number."""
        number = self.trial_number
        return super().title_text() if number is None else f"{super().title_text()} #{number}"

    def glance(self, now: RunNow, width: int) -> Sequence[str]:
        """The trial: number and state, its splitting, what came of it."""
        number = self.trial_number
        trial = now.view.trial(number) if number is not None else None
        return story.glance(trial, now)

    def show_run(self, now: RunNow) -> None:
        """Brings every part up to date."""
        self.query_one(NowPanel).show_run(now)
        number = self.trial_number
        self.detail.show(now.view.trial(number) if number is not None else None, now)
        self._focus()

    def tick(self) -> None:
        """The clock goes on, and with it what runs now."""
        super().tick()
        self.query_one(NowPanel).show_run(self.now)

    def _focus(self) -> None:
        """Arrow keys scroll what is in sight."""
        if not isinstance(self.focused, Input):
            detail = self.detail
            target = (
                detail.rows if detail.tab == "log" else detail.query_one("#text", VerticalScroll)
            )
            self.set_focus(target, scroll_visible=False)

    def show_log(self) -> None:
        """Turns to the log."""
        self.detail.show_tab("log")
        self._focus()

    def paged(self) -> Iterable[Widget]:
        """The story, or the log."""
        detail = self.detail
        return [detail.rows if detail.tab == "log" else detail.query_one("#text", VerticalScroll)]

    def has(self, needs: Needs) -> bool:
        """Whether what a key needs is there."""
        return len(self.now.view.trials) > 1 if needs == "several" else super().has(needs)

    def action_turn(self, by: int) -> None:
        """Turns to another tab."""
        self.detail.turn(by)
        self._focus()

    def action_log(self) -> None:
        """Turns to the log, and back."""
        self.detail.show_tab("summary" if self.detail.tab == "log" else "log")
        self._focus()

    def action_other(self, by: int) -> None:
        """Shows the trial with the next number, or the one before."""
        numbers = sorted(trial.number for trial in self.now.view.trials)
        number = self.trial_number
        if number is None:
            return
        at = numbers.index(number) + by
        if 0 <= at < len(numbers):
            self.owner.chosen_trial = numbers[at]
            self.show_run(self.now)
            self.bring_up_to_date()
        else:
            self.owner.say(f"It is the {'first' if by < 0 else 'last'} trial.")

    def action_wrap_log(self) -> None:
        """Breaks long lines of the log, or cuts them again."""
        self.show_log()
        self.detail.toggle_wrap()

    def action_follow_log(self) -> None:
        """Goes to the end of the log and follows it."""
        self.show_log()
        self.detail.rows.follow()

    def action_find(self) -> None:
        """Asks for words to find in the log."""
        self.show_log()
        field = self.query_one("#find", Input)
        field.display = True
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Goes to the next line that holds the words; the field stays for the one after."""
        if event.value.strip():
            self.detail.find(event.value.strip())

    def close_part(self) -> bool:
        """Esc closes the field first."""
        field = self.query_one("#find", Input)
        if not field.display:
            return False
        field.display = False
        self.set_focus(None)
        self._focus()
        return True

    def log_to_copy(self) -> str | None:
        """The log, once it was shown."""
        return self.detail.log_text() or None
