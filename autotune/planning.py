"""Work on a job without an engine: what would be searched, and one trial of a run again."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

from pydantic import JsonValue

from autotune import request as requests
from autotune.advice.document import SCHEMA
from autotune.errors import (
    AutotuneError,
    UsageError,
)
from autotune.events import (
    Document,
)
from autotune.folding import fold, view_of
from autotune.journal import Journal
from autotune.request import Request
from autotune.run_directory import RunDirectory
from autotune.search.evidence.statistics import samples_per_s_interval
from autotune.search.preparation import prepare_job, trial_plan, worker_pool
from autotune.search.session import Session
from autotune.search.trials import TrialResult, run_trial
from autotune.starting import check_link
from autotune.view import RunView, TrialView
from probes.machine import Machine, machine_adapter


def plan(request: Request) -> Document:
    """What a run would choose from: space, what is ruled out, the machine; no trial is run.

    Raises:
        AutotuneError: The request cannot work.
    """
    check_link(request)
    with tempfile.TemporaryDirectory(prefix="autotune-plan-") as directory:
        run = RunDirectory(Path(directory) / "plan")
        run.create()
        with Journal(run.journal, run.progress) as journal:
            session = Session(run, journal, seconds=request.budget.seconds)
            with prepare_job(session, request, traces=False) as job:
                view = fold(journal.records)
                if job is None or view.space is None or view.machine is None:
                    raise AutotuneError("Planning was stopped.")
                return {
                    "schema": SCHEMA,
                    "baseline": view.space.baseline,
                    "candidates": [
                        {"configuration": candidate, "predicted": _predicted(view, candidate)}
                        for candidate in view.space.candidates
                    ],
                    "local_sgd_steps": list(view.space.local_sgd_steps),
                    "ruled_out": list(view.space.ruled_out),
                    "memory_limit_bytes": view.machine.memory_limit_bytes,
                    "usable_bytes": view.machine.usable_bytes,
                    "limit_source": view.machine.limit_source,
                    "parity": view.parity.detail if view.parity else None,
                    "workload": view.workload.facts if view.workload else {},
                    "environment": dict(view.workload.environment) if view.workload else {},
                    "warnings": [{"cause": w.cause, "remedy": w.remedy} for w in view.warnings],
                    "machine": view.machine.machine,
                }


def _predicted(view: RunView, candidate: Document) -> JsonValue:
    """What an earlier trace of the job predicts of a candidate; None where there is none."""
    foreseen = view.foreseen.candidates if view.foreseen is not None else ()
    return next((f["predicted"] for f in foreseen if f["configuration"] == candidate), None)


def recorded_trial(run: RunDirectory, number: int) -> tuple[TrialView, RunView]:
    """A trial as its run has it, and the run.

    Raises:
        UsageError: The run has no such trial.
        JournalError: Its journal cannot be read.
    """
    view = view_of(run)
    trial = view.trial(number)
    if trial is None or view.machine is None or view.workload is None:
        numbers = sorted(t.number for t in view.trials)
        raise UsageError(
            f"The run {run.name!r} has no trial {number}.",
            f"Its trials are {numbers[0]} to {numbers[-1]}." if numbers else "It has none yet.",
        )
    return trial, view


def rerun_trial(run: RunDirectory, number: int) -> tuple[TrialView, TrialResult]:
    """Runs one trial of a run again, alone, under the same limits; the run stays as it is.

    Returns:
        The trial as the run has it, and what came out now.

    Raises:
        UsageError: The run has no such trial.
        AutotuneError: The workload cannot be loaded any more.
    """
    trial, view = recorded_trial(run, number)
    assert view.machine is not None
    assert view.workload is not None
    request = requests.load(run)
    with tempfile.TemporaryDirectory(prefix="autotune-trial-") as directory:
        again = RunDirectory(Path(directory) / run.name)
        again.create()
        with Journal(again.journal, again.progress) as journal:
            session = Session(again, journal, seconds=request.budget.seconds)
            with worker_pool(session, request, machine_of(view), view.workload.environment) as pool:
                log = again.trial(number) / "output.log"
                result = run_trial(
                    pool,
                    trial.configuration,
                    trial_plan(request, view.machine.usable_bytes, view.parity),
                    log=log,
                    interval=samples_per_s_interval,
                    on_progress=lambda progress: None,
                    should_stop=session.why_stop_now,
                )
        kept = run.trial(number) / "again.log"
        if log.exists():
            # Without a place for it in a run that can only be read, the outcome still stands.
            with contextlib.suppress(OSError):
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(log, kept)
    return trial, result


def machine_of(view: RunView) -> Machine:
    """The machine that a run was measured on.

    Raises:
        UsageError: The run has not got that far.
    """
    if view.machine is None:
        raise UsageError(f"The run {view.run!r} has not probed its machine yet.")
    return machine_adapter().validate_python(view.machine.machine)
