"""One of a few words, in a row that opens a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message

from tui.widgets.one_line import OneLine

_OWN = ""
"""What stands for the empty choice."""


class Choice(OneLine, can_focus=True):
    """Shows the chosen word; enter lists them all, the arrows go through them.

    Args:
        title: What is chosen, as the head of the list.
        words: Pairs of a value and what is shown of it.
        value: The chosen value, even if it is none of them; empty for none.
        placeholder: What holds where none is chosen.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "list_all", show=False),
        Binding("right", "next(1)", show=False),
        Binding("left", "next(-1)", show=False),
    ]

    class Changed(Message):
        """Another word was chosen."""

        def __init__(self, value: str) -> None:
            super().__init__()
            self.value = value

    def __init__(
        self, title: str, words: Sequence[tuple[str, str]], value: str, placeholder: str
    ) -> None:
        super().__init__()
        self._title = title
        self._words = dict(words)
        if value:
            # What is wrong was given all the same, and must be seen to be changed.
            self._words.setdefault(value, value)
        self._placeholder = placeholder
        self.value = value

    def choose(self, value: str) -> None:
        """Chooses a word, or none for a value that is no word of it."""
        value = value if value in self._words else _OWN
        if value != self.value:
            self.value = value
            self.post_message(self.Changed(value).set_sender(self))
        self._draw()

    def set_placeholder(self, text: str) -> None:
        """Changes what is shown where none is chosen."""
        self._placeholder = text
        self._draw()

    def on_resize(self) -> None:
        """Puts the arrow at the right end."""
        self._draw()

    def on_click(self) -> None:
        """Opens the list."""
        self.action_list_all()

    def action_list_all(self) -> None:
        """Lists all words to choose one of."""
        from tui.screens.listing import Listing

        entries = [(_OWN, self._placeholder), *self._words.items()]

        def chosen(value: str | None) -> None:
            if value is not None:
                self.choose(value)
            self.focus()

        self.app.push_screen(Listing(self._title, entries), chosen)

    def action_next(self, step: int) -> None:
        """Chooses the next word, or the one before."""
        values = [_OWN, *self._words]
        self.choose(values[(values.index(self.value) + step) % len(values)])

    def _draw(self) -> None:
        width = self.size.width
        if not width:
            return
        text = self._words.get(self.value, self._placeholder)
        tone = "$text" if self.value else "$text-disabled"
        room = width - 2
        text = text if len(text) <= room else text[: room - 1] + "…"
        self.say(Content.assemble((text.ljust(room), tone), (" ▼", "$text-muted")))
