"""One field of a form: a label, something to fill in, and below it what is wrong with that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.suggester import Suggester, SuggestFromList
from textual.widgets import Input, Select, Static

from autotune.display.output import one_line
from tui.setup.fields import Field
from tui.setup.form import ON, Fault
from tui.setup.places import Wanted, completion
from tui.widgets.rows import hanging, stacked

_LABEL_CELLS = 15

WANTED: dict[str, Wanted] = {
    "model": "model",
    "dataset": "dataset",
    "out": "directory",
    "run_dir": "directory",
}
"""What the fields that hold paths look for."""


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
        Binding("escape", "leave", show=False),
        Binding("down,enter", "screen.focus_next", show=False),
        Binding("up", "screen.focus_previous", show=False),
    ]

    def action_leave(self) -> None:
        """Lets the letters be keys again."""
        self.screen.set_focus(None)


class FieldSelect(Select[str]):
    """A choice among a few words; the empty one is what holds by default."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("enter,space", "show_overlay", show=False),
        Binding("down", "screen.focus_next", show=False),
        Binding("up", "screen.focus_previous", show=False),
    ]

    def action_leave(self) -> None:
        """Lets the letters be keys again."""
        self.screen.set_focus(None)


class FormField(Vertical):
    """A field; says when somebody changes it.

    Args:
        field: What it stands for.
        value: What is filled in.
        placeholder: What an empty field shows.
    """

    DEFAULT_CSS = """
    FormField { height: auto; }
    FormField > Horizontal { height: 1; }
    FormField .label { width: 15; padding: 0 1 0 2; color: $text-muted; }
    FormField:focus-within .label { color: $text-accent; text-style: bold; }
    FormField Input { width: 1fr; height: 1; background: $surface; }
    FormField Select { width: 1fr; height: 1; }
    FormField Select > SelectCurrent { background: $surface; }
    FormField Select > SelectOverlay { width: 36; }
    FormField .fault { display: none; height: auto; padding: 0 1 0 15; color: $text-error; }
    FormField.-wrong .fault { display: block; }
    """

    class Changed(Message):
        """Another value is in a field."""

        def __init__(self, name: str, value: str) -> None:
            super().__init__()
            self.name = name
            self.value = value

    def __init__(self, field: Field, value: str, placeholder: str) -> None:
        super().__init__(id=f"field-{field.name.replace('_', '-')}", classes=f"-{field.kind}")
        self.field = field
        self._value = value
        self._placeholder = placeholder
        self._known: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        """Label and control in one row, the fault below."""
        with Horizontal():
            yield Static(self.field.label, classes="label", markup=False)
            yield self._control()
        yield Static("", classes="fault", markup=False)

    def _control(self) -> Input | Select[str]:
        if self.field.kind in ("switch", "choice"):
            is_switch = self.field.kind == "switch"
            options = (
                [("the built-in demo", ON)]
                if is_switch
                else [(choice, choice) for choice in self.field.choices]
            )
            known = {value for _, value in options}
            return FieldSelect(
                options,
                prompt=self._placeholder,
                value=self._value if self._value in known else Select.NULL,
                compact=True,
            )
        wanted = WANTED.get(self.field.name)
        return FieldInput(
            self._value,
            placeholder=self._placeholder,
            suggester=None if wanted is None else PathSuggester(wanted),
            compact=True,
        )

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
        for control in self.query(FieldInput):
            control.value = value
            control.cursor_position = len(value)
        for select in self.query(FieldSelect):
            known = {*self.field.choices, ON}
            select.value = value if value in known else Select.NULL

    def offer(self, values: Iterable[str]) -> None:
        """Completes what is typed from these values."""
        self._known = tuple(values)
        for control in self.query(FieldInput):
            control.suggester = SuggestFromList(self._known, case_sensitive=False)

    def set_placeholder(self, text: str) -> None:
        """Changes what an empty field shows."""
        if text == self._placeholder:
            return
        self._placeholder = text
        for control in self.query(FieldInput):
            control.placeholder = text
        for select in self.query(FieldSelect):
            select.prompt = text

    def show_fault(self, fault: Fault | None, width: int) -> None:
        """Shows what is wrong with the field, cause and remedy, or that nothing is.

        Args:
            fault: What is wrong.
            width: Cells of a row of the form.
        """
        self.set_class(fault is not None, "-wrong")
        if fault is not None:
            remedy = f" {fault.remedy}" if fault.remedy else ""
            rows = hanging("✗ ", one_line(f"{fault.cause}{remedy}"), width - _LABEL_CELLS - 2)
            shown = self.query_one(".fault", Static)
            shown.update(stacked(rows))
            # A row of the grid would be as high as the text is in a single column.
            shown.styles.height = len(rows)

    def take_focus(self) -> None:
        """Gives the keyboard to the field."""
        for control in self.query("FieldInput, FieldSelect"):
            control.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Tells what was typed."""
        event.stop()
        self._tell(event.value)

    def on_select_changed(self, event: Select.Changed) -> None:
        """Tells what was chosen."""
        event.stop()
        self._tell("" if event.value is Select.NULL else str(event.value))

    def _tell(self, value: str) -> None:
        if value.strip() != self._value.strip():
            self._value = value
            self.post_message(self.Changed(self.field.name, value))
