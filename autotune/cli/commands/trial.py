"""`autotune trial`: one trial of a run again, alone. The run stays as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from autotune.cli import documents, options, summary
from autotune.display import output, wording
from autotune.errors import ExitCode
from autotune.run_directory import find
from autotune.units import format_change
from autotune.view import TrialView


def run(context: typer.Context, chosen: options.Trial) -> int:
    """Runs the command."""
    directory = find(Path(chosen.run_dir).expanduser(), chosen.run)
    from autotune import planning

    planning.recorded_trial(directory, chosen.number)
    output.talk(f"Running trial {chosen.number} of {directory.name} again, alone …")
    before, result = planning.rerun_trial(directory, chosen.number)
    now = replace(
        before, outcome=result.outcome, wall_s=result.wall_s, overhead_s=result.overhead_s
    )
    if chosen.json:
        output.document(
            {
                "schema": documents.SCHEMA,
                "run": directory.name,
                "number": chosen.number,
                "before": documents.trial(before) if before.outcome is not None else None,
                "now": documents.trial(now),
            }
        )
    else:
        log = directory.trial(chosen.number) / "again.log"
        lines = [
            f"Trial {chosen.number}: {summary.spelled_out(before.configuration)}",
            f"  before  {_told(before)}",
            f"  now     {_told(now)}{_change(before, now)}",
        ]
        if log.exists():
            lines.append(f"  log     {log}")
        output.data("\n".join(lines))
    # Whoever runs it in a script relies on what was measured.
    is_worse = before.measured is not None and now.measured is None
    return ExitCode.INTERNAL if is_worse else ExitCode.OK


def _told(trial: TrialView) -> str:
    if trial.outcome is None:
        return "did not end"
    glyph, word = wording.GLYPHS[trial.state], wording.WORDS[trial.state]
    return f"{glyph} {word}: {wording.outcome(trial.outcome)}"


def _change(before: TrialView, now: TrialView) -> str:
    if before.measured is None or now.measured is None:
        return ""
    return f" ({format_change(now.measured.samples_per_s / before.measured.samples_per_s)})"
