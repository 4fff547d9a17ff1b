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
_OF_RUNS = ("run_dir",)
"""Options that also find a run."""


def run(context: typer.Context, chosen: options.Tui) -> int:
    """Runs the command."""
    root = Path(chosen.run_dir).expanduser()
    if chosen.run is not None:
        _refuse_a_job(context, chosen)
    directory = find(root, chosen.run) if chosen.run is not None else None
    look = ["--theme", Reader(context).choice("theme", chosen.theme, _LOOKS)]
    look += ["--ascii"] if chosen.ascii else []
    look += ["--no-mouse"] if chosen.no_mouse else []
    look += ["--run-dir", str(root)]
    filled_in = form_in_json(context, chosen)
    look += ["--setup", filled_in] if directory is None and filled_in is not None else []
    fault = output.why_no_screen(
        "Give a RUN to follow it in plain lines, or set up a job with `autotune tune`."
    )
    if fault is None:
        return screen.show(directory, look=look, invocation=context.find_object(Invocation))
    if directory is None:
        raise fault
    return _in_lines(directory)


def _in_lines(directory: RunDirectory) -> int:
    # What only this way needs; the first picture should not wait for it.
    from autotune.cli import documents
    from autotune.cli.commands import show
    from autotune.display.base import choose

    view, stopped_by = show.follow(directory, documents.view_of(directory), choose("plain"))
    show.tell(directory, view, stopped_by)
    return _code(directory, view) if stopped_by is None else 128 + stopped_by


def _refuse_a_job(context: typer.Context, chosen: options.Tui) -> None:
    """Lets nobody give a job beside a run, which has one: it would count for nothing.

    Raises:
        UsageError: Options of a job were typed. Those of a file or a variable are meant for others.
    """
    typed = [
        f"--{field.name.replace('_', '-')}"
        for field in fields(chosen)
        if field.name not in (*_OF_THE_UI, *_OF_RUNS)
        and is_given(context, field.name)
        and not origin(context, field.name)
    ]
    if typed:
        raise UsageError(
            f"The run {chosen.run!r} has its job already, and {', '.join(typed)} would change "
            "nothing of it.",
            "Leave that out to look at the run, or leave RUN out to set up another job.",
        )


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


def _code(directory: RunDirectory, view: RunView) -> int:
    """How the run ended, as the command that started it would."""
    from autotune.cli import documents

    if view.ended is None:
        is_lost = documents.state(directory, view) == "killed"
        return ExitCode.INTERNAL if is_lost else ExitCode.OK
    return view.ended.exit_code
