"""Questions that stand before anything is ended: nothing destructive happens on one key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from autotune.display.output import one_line
from autotune.outcome import Purpose
from tui import bindings
from tui.owner import Choice
from tui.screens.box import Box

KEYS = "a letter or enter answers · esc goes back"


class Question(Box[str | None]):
    """A question with a few answers; dismissed with the id of one, or None for back.

    Args:
        title: The question.
        explanation: What there is to know before answering; may be empty.
        choices: The answers; the first one is under the cursor.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "Back", show=False)]

    def __init__(self, title: str, explanation: str, choices: Sequence[Choice]) -> None:
        super().__init__()
        self._title = title
        self._explanation = explanation
        self._choices = tuple(choices)

    def compose(self) -> ComposeResult:
        """The question in a box."""
        with Vertical(id="box"):
            yield Static(self._title, id="question", markup=False)
            if self._explanation:
                yield Static(self._explanation, id="explanation", markup=False)
            yield OptionList(
                *(Option(f"{choice.key}  {choice.text}", id=choice.id) for choice in self._choices),
                markup=False,
            )
            yield Static(KEYS, id="explanation-keys", markup=False)

    def on_key(self, event: object) -> None:
        """A letter chooses the answer that it stands before."""
        character = getattr(event, "character", None)
        for choice in self._choices:
            if character == choice.key:
                self.dismiss(choice.id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """The answer under the cursor."""
        self.dismiss(event.option.id)

    def action_back(self) -> None:
        """No answer."""
        self.dismiss(None)


class FormQuestion(Question):
    """Whether to leave a form that is filled in, and whose run is not there yet.

    Args:
        is_starting: Whether somebody has started it, and that still goes on.
    """

    def __init__(self, *, is_starting: bool = False) -> None:
        state = "That gives the start up." if is_starting else "Nothing was started."
        back = "wait for the run" if is_starting else "go on filling it in"
        super().__init__(
            "A run is being started. Leave all the same?"
            if is_starting
            else "Leave the form that is filled in?",
            f"{state} The command that fills it in again stays on the terminal. "
            f"{bindings.shown('interrupt')} again leaves at once.",
            (
                Choice(id="back", key="b", text=f"Back: {back}"),
                Choice(id="leave", key="l", text="Leave"),
            ),
        )


class WritingQuestion(Question):
    """Whether to leave while files are being written.

    Args:
        place: Where to.
    """

    def __init__(self, place: Path) -> None:
        super().__init__(
            "Files are being written. Leave all the same?",
            f"Nothing is written to {one_line(str(place))} then. The command that writes them "
            f"stays on the terminal. {bindings.shown('interrupt')} again leaves at once.",
            (
                Choice(id="back", key="b", text="Back: wait for the files"),
                Choice(id="leave", key="l", text="Leave: write nothing"),
            ),
        )


class LeaveQuestion(Question):
    """What should become of a run that goes on when its UI is left.

    Args:
        running: What the trial that runs now is for; None between trials.
    """

    def __init__(self, *, running: Purpose | None) -> None:
        match running:
            case None:
                stop = "Stop when the present step is done"
            case "confirm":
                stop = "Stop after this measurement: a run that goes on confirms anew"
            case _:
                stop = "Finish the running trial, then stop"
        super().__init__(
            "The run goes on. What should become of it?",
            "Every finished trial is kept in any case. "
            f"{bindings.shown('interrupt')} again stops now.",
            (
                Choice(id="detach", key="d", text="Detach: leave, and let the run go on"),
                Choice(id="stop", key="f", text=stop),
                Choice(id="stop_now", key="s", text="Stop now: the running trial is given up"),
                Choice(id="back", key="b", text="Back: change nothing"),
            ),
        )
