"""One field of a form: a label, something to fill in, and below it what is wrong with that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.events import Paste
from textual.message import Message
from textual.suggester import Suggester, SuggestFromList
from textual.widget import Widget
from textual.widgets import Input, Static

from autotune.display.output import one_line
from tui.setup.fields import Field
from tui.setup.form import ON, Fault
from tui.setup.places import Wanted, completion
from tui.widgets.choice import Choice
from tui.widgets.rows import hanging, stacked

WANTED: dict[str, Wanted] = {
    "model": "model",
    "dataset": "dataset",
    "out": "directory",
    "run_dir": "directory",
}
"""What the fields that hold paths look for."""
_LABEL_CELLS = 15
_MOVES: list[BindingType] = [
    Binding("escape", "leave", show=False),
    Binding("down", "app.focus_next", show=False),
    Binding("up", "app.focus_previous", show=False),
]


class PathSuggester(Suggester):
    """Completes the name that is being typed from what is on the disk."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._wanted = wanted

    async def get_suggestion(self, value: str) -> str | None:
        """The text with its last name completed, or None."""
        return await asyncio.to_thread(completion, value, self._wanted)


class FieldInput(Input):
    """A line that gives the keyboard back on escape, and moves on with the arrows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *_MOVES,
        Binding("enter", "app.focus_next", show=False),
    ]

    def action_leave(self) -> None:
        """Lets the letters be keys again."""
        self.screen.set_focus(None)

    def on_paste(self, event: Paste) -> None:
        """Takes the first line that holds anything, without what no key types."""
        event.prevent_default()
        event.stop()
        lines = [line.strip() for line in event.text.splitlines()]
        text = "".join(filter(str.isprintable, next(filter(None, lines), "")))
        self.replace(text, *self.selection)


class FieldChoice(Choice):
    """A choice among a few words; the empty one is what holds by default."""

    BINDINGS: ClassVar[list[BindingType]] = _MOVES

    def action_leave(self) -> None:
        """Lets the letters be keys again."""
        self.screen.set_focus(None)


class FormField(Container):
    """A field; says when somebody changes it.

    Few widgets, since a form has many of these: what is wrong gets one when something is.

    Args:
        field: What it stands for.
        value: What is filled in.
        placeholder: What an empty field shows.
    """

    DEFAULT_CSS = """
    FormField {
        layout: grid;
        grid-size: 2;
        grid-columns: 15 1fr;
        grid-rows: auto;
        height: auto;
    }
    FormField > .label { height: 1; padding: 0 1 0 2; color: $text-muted; }
    FormField:focus-within > .label { color: $text-accent; text-style: bold; }
    FormField > FieldInput, FormField > FieldChoice { height: 1; background: $surface; }
    FormField > FieldChoice:focus { background: $panel; }
    FormField > .fault { column-span: 2; padding: 0 1 0 15; color: $text-error; }
    """

    class Changed(Message):
        """Another value is in a field."""

        def __init__(self, name: str, value: str) -> None:
            super().__init__()
            self.name = name
            self.value = value

    def __init__(self, field: Field, value: str, placeholder: str) -> None:
        super().__init__(id=f"field-{field.name.replace('_', '-')}")
        self.field = field
        self._value = value
        self._placeholder = placeholder
        self._known: tuple[str, ...] = ()
        self._control: FieldInput | FieldChoice = self._make()
        self._fault: Static | None = None

    def _make(self) -> FieldInput | FieldChoice:
        if self.field.kind in ("switch", "choice"):
            is_switch = self.field.kind == "switch"
            words = (
                [(ON, "the built-in demo")]
                if is_switch
                else [(choice, choice) for choice in self.field.choices]
            )
            title = f"{self.field.label}: {self.field.hint[:1].lower()}{self.field.hint[1:]}"
            return FieldChoice(title, words, self._value, self._placeholder)
        wanted = WANTED.get(self.field.name)
        return FieldInput(
            self._value,
            placeholder=self._placeholder,
            suggester=None if wanted is None else PathSuggester(wanted),
            compact=True,
        )

    def compose(self) -> ComposeResult:
        """Label and control in one row."""
        yield Static(self.field.label, classes="label", markup=False)
        yield self._control

    @property
    def value(self) -> str:
        """What is filled in."""
        return self._value

    @property
    def known(self) -> tuple[str, ...]:
        """Values that are known to exist, for whoever offers a list of them."""
        return self._known

    def write(self, value: str) -> None:
        """Fills a value in; that counts as a change."""
        if isinstance(self._control, FieldChoice):
            self._control.choose(value)
        else:
            self._control.value = value
            self._control.cursor_position = len(value)

    def offer(self, values: Iterable[str]) -> None:
        """Completes what is typed from these values."""
        self._known = tuple(values)
        if isinstance(self._control, FieldInput):
            self._control.suggester = SuggestFromList(self._known, case_sensitive=False)

    def set_placeholder(self, text: str) -> None:
        """Changes what an empty field shows."""
        if text == self._placeholder:
            return
        self._placeholder = text
        if isinstance(self._control, FieldChoice):
            self._control.set_placeholder(text)
        else:
            self._control.placeholder = text

    def show_fault(self, fault: Fault | None, width: int) -> None:
        """Shows what is wrong with the field, cause and remedy, or that nothing is.

        Args:
            fault: What is wrong.
            width: Cells of a row of the form.
        """
        self.set_class(fault is not None, "-wrong")
        if self._fault is not None:
            self._fault.display = fault is not None
        if fault is None:
            return
        remedy = f" {fault.remedy}" if fault.remedy else ""
        text = one_line(f"{fault.cause}{remedy}")
        rows: list[Content] = hanging("✗ ", text, width - _LABEL_CELLS - 2)
        if self._fault is None:
            self._fault = Static("", classes="fault", markup=False)
            self.mount(self._fault)
        self._fault.update(stacked(rows))
        # A row of the grid would be as high as the text is in a single column.
        self._fault.styles.height = len(rows)

    def take_focus(self) -> None:
        """Gives the keyboard to the field."""
        self._control.focus()

    @property
    def control(self) -> Widget:
        """What has the keyboard while the field is filled in."""
        return self._control

    def on_input_changed(self, event: Input.Changed) -> None:
        """Tells what was typed."""
        event.stop()
        self._tell(event.value)

    def on_choice_changed(self, event: Choice.Changed) -> None:
        """Tells what was chosen."""
        event.stop()
        self._tell(event.value)

    def _tell(self, value: str) -> None:
        if value.strip() != self._value.strip():
            self._value = value
            self.post_message(self.Changed(self.field.name, value).set_sender(self))


def fill_rows(fields: Iterable[FormField]) -> None:
    """Gives the left one of two fields a whole row where the right one needs one.

    A grid cuts what spans two columns and begins in the second.
    """
    shown = [field for field in fields if field.display]
    alone: set[FormField] = set()
    left: FormField | None = None
    for field in shown:
        is_whole = field.has_class("-whole-row") or field.has_class("-wrong")
        if is_whole and left is not None:
            alone.add(left)
        left = field if left is None and not is_whole else None
    for field in shown:
        field.set_class(field in alone, "-alone")
