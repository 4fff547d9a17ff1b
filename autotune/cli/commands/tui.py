"""`autotune tui`: the terminal UI on a run, or on a job to be set up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autotune.cli import options, screen
from autotune.cli.reader import Reader
from autotune.display import output
from autotune.errors import ExitCode, UsageError
from autotune.run_directory import RunDirectory, find

if TYPE_CHECKING:
    from autotune.view import RunView

_LOOKS = ("dark", "light")


def run(context: typer.Context, chosen: options.Tui) -> int:
    """Runs the command."""
    root = Path(chosen.run_dir).expanduser()
    directory = find(root, chosen.run) if chosen.run is not None else None
    look = ["--theme", Reader(context).choice("theme", chosen.theme, _LOOKS)]
    look += ["--ascii"] if chosen.ascii else []
    look += ["--no-mouse"] if chosen.no_mouse else []
    look += ["--run-dir", str(root)]
    if output.can_take_screen():
        return screen.show(directory, look=look)
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


def _code(view: RunView) -> int:
    """How the run ended, as the command that started it would."""
    if view.ended is None:
        return ExitCode.INTERNAL if view.started is not None else ExitCode.OK
    return view.ended.exit_code
