"""What can be copied of a trial."""

from __future__ import annotations

import json

from autotune.display import wording
from autotune.view import TrialView
from tui import words
from tui.run_now import RunNow
from tui.trials import columns


def configuration(trial: TrialView) -> str:
    """The configuration as JSON, in its public form."""
    return json.dumps(trial.configuration.to_json(), indent=2)


def row(trial: TrialView, now: RunNow) -> str:
    """Heads and cells of the trial, separated by tabs, for a spreadsheet."""
    chosen = columns.COLUMNS
    cells = [column.cell(trial, now.view) for column in chosen]
    return "\t".join(column.head for column in chosen) + "\n" + "\t".join(cells)


def outcome(trial: TrialView, now: RunNow) -> str:
    """How the trial ended, and why it was tried."""
    told = words.lost(now) if trial.is_lost else wording.ending_of(trial)
    return (
        f"Trial {trial.number} of {now.name}, {trial.configuration}: "
        f"{wording.WORDS[trial.state]}, {told}\n"
        f"Tried because: {trial.why or 'it was given'}"
    )
