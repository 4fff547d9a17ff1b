"""`autotune show`: one run, its answer, its trials and the reasons; live with `--follow`."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import typer

from autotune.cli import documents, options, summary
from autotune.cli.reader import Reader
from autotune.display import DISPLAYS, output, standing
from autotune.display.base import Display, choose
from autotune.display.watch import Signals, from_outside
from autotune.errors import ExitCode
from autotune.run_directory import RunDirectory, find
from autotune.view import RunView

_LEASE_INTERVAL_S = 1.0


def run(context: typer.Context, chosen: options.Show) -> int:
    """Runs the command."""
    directory = find(Path(chosen.run_dir).expanduser(), chosen.run)
    display = choose(Reader(context).choice("display", chosen.display, DISPLAYS))
    view, stopped_by = documents.view_of(directory), None
    if chosen.follow:
        view, stopped_by = follow(directory, view, display)
    if chosen.json:
        output.document(documents.result(directory, view, None))
    else:
        tell(directory, view, stopped_by)
    return ExitCode.OK if stopped_by is None else 128 + stopped_by


def follow(
    directory: RunDirectory, view: RunView, display: Display
) -> tuple[RunView, signal.Signals | None]:
    """Shows a run until it ends or a signal ends the watching.

    Returns:
        The run then, and the signal.
    """
    if documents.state(directory, view) != "running":
        return view, None
    with Signals() as signals:
        view = from_outside(directory, signals, display, view, is_alive=_engine_lives(directory))
        return view, signals.last


def tell(directory: RunDirectory, view: RunView, stopped_by: signal.Signals | None) -> None:
    """Prints the run, or that it goes on where a signal ended the watching."""
    if stopped_by is None:
        output.data(_text(directory, view))
    else:
        output.talk(f"Run {directory.name} goes on.")


def _engine_lives(directory: RunDirectory) -> Callable[[], bool]:
    """A question that is cheap to ask often."""
    looked_s = float("-inf")
    lives = True

    def ask() -> bool:
        nonlocal looked_s, lives
        now_s = time.monotonic()
        if now_s - looked_s >= _LEASE_INTERVAL_S:
            looked_s = now_s
            lives = standing.is_held(directory)
        return lives

    return ask


def _text(directory: RunDirectory, view: RunView) -> str:
    view = documents.as_it_stands(directory, view)
    lines = summary.head(directory, view)
    lines += summary.trials(view)
    lines += summary.ruled_out(view)
    answer = summary.recommendation(directory, view)
    lines += ["", answer] if answer else summary.warnings(view)
    return "\n".join(lines)
