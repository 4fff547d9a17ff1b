"""One line of text, asked for in a box."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static


class Prompt(ModalScreen[str | None]):
    """Asks for a text; dismissed with it, or with None where there is none."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "Back", show=False)]

    def __init__(self, title: str, placeholder: str = "", value: str = "") -> None:
        super().__init__()
        self._title = title
        self._placeholder = placeholder
        self._value = value

    def compose(self) -> ComposeResult:
        """A title and a field."""
        with Vertical(id="box"):
            yield Static(self._title, id="question", markup=False)
            yield Input(self._value, placeholder=self._placeholder, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The text that was written."""
        self.dismiss(event.value.strip() or None)

    def action_back(self) -> None:
        """No text."""
        self.dismiss(None)
