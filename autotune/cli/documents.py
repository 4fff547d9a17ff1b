"""Runs as JSON: what `--json` prints."""

from __future__ import annotations

import time

from pydantic import JsonValue

from autotune.display import standing, wording
from autotune.errors import AutotuneError
from autotune.folding import view_of as view_of
from autotune.run_directory import RunDirectory
from autotune.view import RunView, TrialView, without_engine

SCHEMA = 1


def result(run: RunDirectory, view: RunView, error: AutotuneError | None) -> dict[str, object]:
    """The public document of a run: its recommendation, or null and the error instead of it.

    Args:
        run: Where it is.
        view: What it tells.
        error: What came of it just now; None where it is looked back on, and tells itself.
    """
    if view.recommendation is not None and error is None:
        return dict(view.recommendation)
    if error is None and view.ended is not None and view.ended.cause:
        error = AutotuneError(view.ended.cause, view.ended.remedy)
    # With numpy behind them, which a finished run does without.
    from autotune.advice.document import cost_json, trials_json

    whole: dict[str, object] = {"schema": SCHEMA, "run": view.run or run.name}
    whole["recommendation"] = None
    if error is not None:
        whole["error"] = {"cause": error.cause, "remedy": error.remedy}
    return whole | {
        "trials": trials_json(view),
        "machine": view.machine.machine if view.machine else {},
        "cost": cost_json(view),
    }


def trial(view: TrialView) -> JsonValue:
    """One finished trial."""
    from autotune.advice.document import trials_json

    return trials_json(RunView(trials=(view,)))[0]


def state(run: RunDirectory, view: RunView) -> str:
    """running; finished, failed or stopped as its engine said; or killed if it said nothing."""
    return standing.state(run, view)


def as_it_stands(run: RunDirectory, view: RunView) -> RunView:
    """The run for people: a trial whose engine is gone does not run any more."""
    return view if standing.is_held(run) else without_engine(view)


def overview(run: RunDirectory, view: RunView) -> dict[str, object]:
    """One line of the list of runs."""
    view = as_it_stands(run, view)
    best = view.trial(view.best.number) if view.best else None
    number = view.confirmed.number if view.confirmed else best.number if best else None
    chosen = view.trial(number) if number is not None else None
    speedup = (
        view.confirmed.speedup
        if view.confirmed and view.confirmed.baseline_number is not None
        else wording.speedup(best, view)
        if best
        else None
    )
    return {
        "run": run.name,
        "path": str(run.path),
        "state": state(run, view),
        "configuration": chosen.configuration.to_json() if chosen else None,
        "speedup": speedup,
        "useful_speedup": view.confirmed.useful_speedup if view.confirmed else None,
        "confirmed": view.confirmed is not None,
        "trials": view.num_search_trials,
        "created_unix_s": view.created_unix_s or None,
        "age_s": time.time() - view.created_unix_s if view.created_unix_s else None,
    }
