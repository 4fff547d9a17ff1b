"""A list to choose one entry of, with a line to narrow it down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tui.screens.box import Box

MAX_SHOWN = 300
"""Entries that a list shows at once; typing finds the others."""


class Listing(Box[str | None]):
    """Dismissed with the entry that was chosen, or with None.

    Args:
        title: What is chosen.
        entries: Pairs of the value and what is shown of it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", show=False),
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("pageup", "move(-10)", show=False),
    ]
    AUTO_FOCUS = "Input"

    def __init__(self, title: str, entries: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._title = title
        # A value is chosen by itself: the same one twice, as a column may be, is one entry.
        self._entries = tuple(dict(entries).items())

    def compose(self) -> ComposeResult:
        """A title, the line to type in and the list."""
        with Vertical(id="box"):
            yield Static(self._title, id="question", markup=False)
            yield Input(placeholder="type to narrow down", compact=True)
            yield OptionList(markup=False)
            yield Static("enter chooses · esc goes back", id="explanation", markup=False)

    def on_mount(self) -> None:
        """Shows every entry."""
        self._list("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrows the list down to what has the typed words."""
        self._list(event.value)

    def _list(self, text: str) -> None:
        words = text.casefold().split()
        found = [
            Option(shown, id=value)
            for value, shown in self._entries
            if all(word in shown.casefold() for word in words)
        ][:MAX_SHOWN]
        listed = self.query_one(OptionList)
        listed.set_options(found)
        listed.highlighted = 0 if found else None

    def action_move(self, rows: int) -> None:
        """Moves the cursor of the list while the line keeps the keyboard."""
        listed = self.query_one(OptionList)
        if listed.option_count:
            at = (listed.highlighted or 0) + rows
            listed.highlighted = min(max(at, 0), listed.option_count - 1)

    def on_input_submitted(self) -> None:
        """Takes the entry under the cursor."""
        option = self.query_one(OptionList).highlighted_option
        if option is not None:
            self.dismiss(option.id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Takes the entry that was clicked."""
        self.dismiss(event.option.id)

    def action_back(self) -> None:
        """Takes none."""
        self.dismiss(None)
