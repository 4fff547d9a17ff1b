"""Lists that setup opens: of what a field takes, and of the runs there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from textual.app import App

from autotune.display import output
from autotune.run_directory import RunDirectory
from tui.screens.listing import Listing
from tui.screens.path_picker import PathPicker
from tui.setup.places import runs_in
from tui.widgets.form_field import WANTED, FormField


def has_choices(field: FormField) -> bool:
    """Whether there is something to choose from for a field."""
    return field.field.name in WANTED or bool(field.known)


def browse(field: FormField) -> None:
    """Opens a list of what a field takes, and fills in what is chosen."""
    label, hint = field.field.label, f"{field.field.hint[:1].lower()}{field.field.hint[1:]}"

    def chosen(value: str | None) -> None:
        if value is not None:
            field.write(value)
        field.take_focus()

    wanted = WANTED.get(field.field.name)
    if wanted is not None:
        field.app.push_screen(PathPicker(f"{label}: {hint}", wanted, field.value), chosen)
    else:
        entries = [(value, value) for value in field.known]
        field.app.push_screen(Listing(f"The column with {hint}", entries), chosen)


def choose_run(app: App[int], root: Path, taken: Callable[[RunDirectory], None]) -> str:
    """Opens a list of the runs in a directory.

    Args:
        app: Where to open it.
        root: The directory.
        taken: Is called with the run that is chosen.

    Returns:
        Why there is none to choose from; empty where there are some.
    """
    found, why_none = runs_in(root)
    if not found:
        return why_none
    entries = [(str(run.path), output.one_line(run.name)) for run in found]

    def chosen(path: str | None) -> None:
        if path is not None:
            taken(RunDirectory(Path(path)))

    app.push_screen(Listing(f"Runs in {root}, newest first", entries), chosen)
    return ""
