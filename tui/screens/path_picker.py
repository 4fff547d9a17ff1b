"""Looks through directories for a model, for data or for a place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tui.screens.box import Box
from tui.setup.places import Place, Wanted, listed, path_of, shortened, split
from tui.widgets.rows import padded

_HERE = "this directory"


class PathPicker(Box[str | None]):
    """Dismissed with a path, or with None.

    Typing narrows the list down; enter goes into a directory or takes what is looked for.

    Args:
        title: What is looked for, in words.
        wanted: What is looked for.
        start: Where to begin; a path that need not exist.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", show=False),
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("tab", "complete", show=False, priority=True),
    ]
    AUTO_FOCUS = "Input"

    def __init__(self, title: str, wanted: Wanted, start: str) -> None:
        super().__init__()
        self._title = title
        self._wanted = wanted
        path = path_of(start) if start else Path()
        directory = path if _is_directory(path) else path.parent
        self._start = "" if str(directory) == "." else f"{directory}/"
        self._places: list[Place] = []
        self._directory: Path | None = None

    def compose(self) -> ComposeResult:
        """A title, the path so far and what is there."""
        with Vertical(id="box"):
            yield Static(self._title, id="question", markup=False)
            yield Input(self._start, placeholder="a path", compact=True, select_on_focus=False)
            yield OptionList(markup=False)
            yield Static("enter takes or goes in · tab completes · esc goes back", id="explanation")

    def on_mount(self) -> None:
        """Shows what is at the start."""
        self._look()

    def on_input_changed(self) -> None:
        """Shows what fits the text."""
        self._look()

    @work(exclusive=True, group="look", exit_on_error=False)
    async def _look(self) -> None:
        directory, beginning = split(self.query_one(Input).value)
        told = ""
        if directory != self._directory:
            try:
                places = await asyncio.to_thread(listed, directory, self._wanted)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                places, told = [], f"{directory}: {reason}"
            self._places, self._directory = places, directory
        self._list(beginning, told)

    def _list(self, beginning: str, told: str) -> None:
        options = []
        if not beginning:
            if self._wanted in ("directory", "dataset"):
                options.append(Option(f"./   {_HERE}", id="."))
            options.append(Option("../  the directory above", id=".."))
        options += [
            Option(_shown(place), id=place.name)
            for place in self._places
            if place.name.casefold().startswith(beginning.casefold())
        ]
        if told or not options:
            options = [*options, Option(told or "nothing here fits", disabled=True)]
        listing = self.query_one(OptionList)
        listing.set_options(options)
        num_own = sum(option.id in (".", "..") for option in options)
        is_first = len(options) > num_own and not options[num_own].disabled
        listing.highlighted = num_own if is_first else 0

    def action_move(self, rows: int) -> None:
        """Moves the cursor of the list while the path keeps the keyboard."""
        listing = self.query_one(OptionList)
        if listing.option_count:
            at = (listing.highlighted or 0) + rows
            listing.highlighted = min(max(at, 0), listing.option_count - 1)

    def action_complete(self) -> None:
        """Puts the entry under the cursor into the path."""
        option = self.query_one(OptionList).highlighted_option
        if option is not None and option.id not in (None, ".", ".."):
            place = self._place(str(option.id))
            self._write(f"{self._base()}{option.id}{'/' if place and place.is_directory else ''}")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Takes or enters the entry under the cursor."""
        option = self.query_one(OptionList).highlighted_option
        if option is not None and option.id is not None:
            self._choose(option.id)
        elif event.value:
            self.dismiss(shortened(Path(event.value)))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Takes or enters what was clicked."""
        if event.option.id is not None:
            self._choose(event.option.id)

    def _choose(self, name: str) -> None:
        base = self._base()
        if name == ".":
            self.dismiss(shortened(Path(base or ".")))
            return
        if name == "..":
            above = shortened(Path(base or ".") / "..")
            self._write(f"{above}/" if above != "." else "")
            return
        place = self._place(name)
        if place is not None and place.is_directory and not place.is_whole:
            self._write(f"{base}{name}/")
        else:
            self.dismiss(shortened(Path(f"{base}{name}")))

    def _base(self) -> str:
        """The text up to the name that is being typed."""
        text = self.query_one(Input).value
        return text[: text.rfind("/") + 1]

    def _place(self, name: str) -> Place | None:
        return next((place for place in self._places if place.name == name), None)

    def _write(self, text: str) -> None:
        field = self.query_one(Input)
        field.value = text
        field.cursor_position = len(text)
        field.focus()

    def action_back(self) -> None:
        """Takes none."""
        self.dismiss(None)


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _shown(place: Place) -> str:
    name = f"{place.name}/" if place.is_directory else place.name
    return f"{padded(name, 44)}  {place.note}".rstrip() if place.note else name
