"""One line of text, asked for in a box."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from tui.screens.box import Box


class Prompt(Box[str | None]):
    """Asks for a text; dismissed with it, or with None where there is none.

    Args:
        title: What is asked for.
        hint: What the keys do.
        placeholder: What an empty field shows.
        value: What stands in the field at first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "Back", show=False)]

    def __init__(self, title: str, *, hint: str, placeholder: str = "", value: str = "") -> None:
        super().__init__()
        self._title = title
        self._hint = hint
        self._placeholder = placeholder
        self._value = value

    def compose(self) -> ComposeResult:
        """A title, a field and its keys."""
        with Vertical(id="box"):
            yield Static(self._title, id="question", markup=False)
            yield Input(self._value, placeholder=self._placeholder, compact=True)
            yield Static(self._hint, id="explanation", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The text that was written."""
        self.dismiss(event.value.strip() or None)

    def action_back(self) -> None:
        """No text."""
        self.dismiss(None)
