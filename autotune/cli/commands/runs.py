"""`autotune runs`: every run with its state and its best."""

from __future__ import annotations

from pathlib import Path

import typer

from autotune.cli import documents, options, summary
from autotune.configuration import Configuration
from autotune.display import output
from autotune.errors import ExitCode, JournalError
from autotune.run_directory import RunDirectory, list_runs
from autotune.units import format_change


def run(context: typer.Context, chosen: options.ListRuns) -> int:
    """Runs the command."""
    root = Path(chosen.run_dir).expanduser()
    overviews = [_overview(directory) for directory in list_runs(root)]
    if chosen.json:
        output.document({"schema": documents.SCHEMA, "run_directory": str(root), "runs": overviews})
    elif not overviews:
        output.talk(f"No runs in {root} yet. `autotune tune --demo` makes one.")
    else:
        head = ("run", "state", "best", "speed-up", "trials", "age")
        rows = [_row(overview) for overview in overviews]
        output.data("\n".join(summary.table(head, rows, right=(3, 4, 5))))
    return ExitCode.OK


def _overview(directory: RunDirectory) -> dict[str, object]:
    """One run; one that cannot be read says so and hides no other."""
    try:
        return documents.overview(directory, documents.view_of(directory))
    except JournalError as error:
        return {
            "run": directory.name,
            "path": str(directory.path),
            "state": "damaged",
            "cause": error.cause,
        }


def _row(overview: dict[str, object]) -> tuple[str, ...]:
    configuration = overview.get("configuration")
    speedup = overview.get("speedup")
    age_s = overview.get("age_s")
    trials = overview.get("trials")
    useful = overview.get("useful_speedup")
    change = format_change(speedup) if isinstance(speedup, float) else "–"
    if isinstance(useful, float):
        change = f"{format_change(useful)} useful, {change} speed"
    return (
        output.one_line(str(overview["run"])),
        str(overview["state"]),
        str(Configuration.from_json(configuration)) if isinstance(configuration, dict) else "–",
        change if overview.get("confirmed") or change == "–" else f"{change}, unconfirmed",
        str(trials) if trials is not None else "–",
        _age(age_s) if isinstance(age_s, float) else "–",
    )


def _age(seconds: float) -> str:
    for unit, unit_s in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= unit_s:
            number = int(seconds // unit_s)
            return f"{number} {unit}{'s' if number > 1 else ''}"
    return "now"
