"""Copying from a trial, the same on both screens that show one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from autotune.view import TrialView
from tui.owner import Choice
from tui.trials import copying, story

if TYPE_CHECKING:
    from tui.screens.base import RunScreen


class CopyTrial:
    """Verbs of a screen with a chosen trial."""

    def _chosen(self) -> tuple[RunScreen, TrialView | None]:
        screen = cast("RunScreen", self)
        number = screen.trial_number
        return screen, screen.now.view.trial(number) if number is not None else None

    def log_to_copy(self) -> str | None:
        """The log, where this screen shows it."""
        return None

    def action_copy_command(self) -> None:
        """Copies the command that runs the trial again."""
        screen, trial = self._chosen()
        if trial is not None:
            screen.owner.copy(story.command_again(trial, screen.now), "the command")

    def action_copy_other(self) -> None:
        """Asks what to copy."""
        screen, trial = self._chosen()
        if trial is None:
            return
        chosen = trial
        now = screen.now
        log = self.log_to_copy()
        choices = [
            Choice(id="configuration", key="c", text="the configuration, as JSON"),
            Choice(id="row", key="r", text="the row, separated by tabs"),
            Choice(id="outcome", key="o", text="how it ended, and why it was tried"),
        ]
        if log is not None:
            choices.append(Choice(id="log", key="l", text="the log, as far as it is shown"))

        def answered(answer: str) -> None:
            match answer:
                case "configuration":
                    screen.owner.copy(copying.configuration(chosen), "the configuration")
                case "row":
                    screen.owner.copy(copying.row(chosen, now), "the row")
                case "outcome":
                    screen.owner.copy(copying.outcome(chosen, now), "the outcome")
                case _:
                    screen.owner.copy(log or "", "the log")

        screen.owner.ask_user(f"Copy what of trial {trial.number}?", "", choices, answered)
