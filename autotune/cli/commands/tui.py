"""`autotune tui`: the terminal UI on a run, or on a job to be set up."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autotune.cli import options, screen
from autotune.cli.declare import Invocation, is_given, origin
from autotune.cli.reader import Reader
from autotune.display import output
from autotune.errors import ExitCode, UsageError
from autotune.run_directory import RunDirectory, find

if TYPE_CHECKING:
    from autotune.view import RunView

_LOOKS = ("dark", "light")
_OF_THE_UI = ("run", "theme", "ascii", "no_mouse")
"""Options that say nothing of a job."""


def run(context: typer.Context, chosen: options.Tui) -> int:
    """Runs the command."""
    root = Path(chosen.run_dir).expanduser()
    directory = find(root, chosen.run) if chosen.run is not None else None
    look = ["--theme", Reader(context).choice("theme", chosen.theme, _LOOKS)]
    look += ["--ascii"] if chosen.ascii else []
    look += ["--no-mouse"] if chosen.no_mouse else []
    look += ["--run-dir", str(root)]
    filled_in = form_in_json(context, chosen)
    look += ["--setup", filled_in] if directory is None and filled_in is not None else []
    if output.can_take_screen():
        return screen.show(directory, look=look, invocation=context.find_object(Invocation))
    if directory is None:
        raise UsageError(
            "The terminal UI needs a terminal.",
            "Give a RUN to follow it in plain lines, or set up a job with `autotune tune`.",
        )
    return _in_lines(directory)


def _in_lines(directory: RunDirectory) -> int:
    # What only this way needs; the first picture should not wait for it.
    from autotune.cli import documents
    from autotune.cli.commands import show
    from autotune.display.base import choose

    view, stopped_by = show.follow(directory, documents.view_of(directory), choose("plain"))
    show.tell(directory, view, stopped_by)
    return _code(view) if stopped_by is None else 128 + stopped_by


def form_in_json(context: typer.Context, chosen: options.Tui) -> str | None:
    """What the form of a job begins with, as the UI takes it; None where nothing is given.

    What was typed fills the form in; what a file or a variable says is told with its origin, since
    the commands that the form starts read the same ones.
    """
    given: dict[str, object] = {}
    inherited: dict[str, list[object]] = {}
    for field in fields(chosen):
        value = getattr(chosen, field.name)
        if field.name in _OF_THE_UI or not is_given(context, field.name) or value is None:
            continue
        where = origin(context, field.name).strip(" ()").removeprefix("from ")
        if where:
            inherited[field.name] = [value, Path(where).name]
        else:
            given[field.name] = value
    if not given and not inherited:
        return None
    return json.dumps({"given": given, "inherited": inherited})


def _code(view: RunView) -> int:
    """How the run ended, as the command that started it would."""
    if view.ended is None:
        return ExitCode.INTERNAL if view.started is not None else ExitCode.OK
    return view.ended.exit_code
