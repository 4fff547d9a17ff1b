"""Makes or takes up a run and starts its engine; whoever does that stays light himself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from autotune import control, lease, storage_url
from autotune import request as requests
from autotune.errors import UsageError
from autotune.request import Request
from autotune.run_directory import RunDirectory, checked_name, find, new_name

LIBRARIES = ("autotune-advisor", "torch", "transformers", "accelerate", "optuna", "datasets")


def prepare(
    request: Request, run_root: Path, name: str | None, *, fresh: bool, resume: bool
) -> RunDirectory:
    """Makes the directory of a new run, or takes up an existing one.

    Args:
        request: What is asked for.
        run_root: Where runs are kept.
        name: The run's name; None makes one up, or takes the newest run when resuming.
        fresh: Start over though a run of that name exists.
        resume: Go on with a run that exists.

    Raises:
        UsageError: The run exists and is not to be resumed, is missing, or is another job; or the
            name leads elsewhere, or to something that is no run.
    """
    if resume:
        run = find(run_root, name or "last")
        _same_job(requests.load(run), request, run)
        # What was asked of an engine that has ended is not meant for the next one.
        control.take(run.control)
        requests.save(request, run)
        return run
    name = checked_name(name or new_name(run_root, request.workload.name))
    run = RunDirectory(run_root / name)
    if not run.request.exists() and run.path.exists() and any(run.path.iterdir()):
        raise UsageError(
            f"{run.path} exists and is no run.", "Choose another --name, or another --run-dir."
        )
    if run.request.exists() and not fresh:
        raise UsageError(
            f"There is a run {run.name!r} already.",
            "Go on with it by --resume, replace it by --fresh, or choose another --name.",
        )
    held = lease.read(run.lease)
    if held is not None and held.is_alive:
        raise UsageError(
            f"The run {run.name!r} is being worked on by process {held.process} on {held.host}.",
            "Stop it first, or choose another --name.",
        )
    run.create()
    if fresh:
        _forget(run)
    requests.save(request, run)
    return run


def _same_job(before: Request, now: Request, run: RunDirectory) -> None:
    kept = ("workload", "goal", "baseline_micro_batch_size", "driver", "processes", "local_sgd")
    for field in kept:
        if getattr(before, field) != getattr(now, field):
            raise UsageError(
                f"The run {run.name!r} was started with another {field.replace('_', ' ')}: "
                f"{getattr(before, field)} instead of {getattr(now, field)}.",
                "Resume it with its own options (autotune tune --resume --name "
                f"{run.name}), or start a new run.",
            )


def _forget(run: RunDirectory) -> None:
    """Moves the story of an earlier run of that name aside; nothing is deleted."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for path in (run.journal, run.progress, run.study):
        if path.exists():
            path.rename(path.with_name(f"{path.name}.{stamp}"))


def engine_environment(request: Request, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables for the engine of a request: the password of its storage stands nowhere else.

    Args:
        request: What is asked for.
        base: All other variables.
    """
    environment = dict(base)
    if request.storage is not None:
        environment[storage_url.VARIABLE] = storage_url.with_password(request.storage, base) or ""
    return environment


def start_engine(
    run: RunDirectory, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts the engine of a run as a process in a session of its own, and does not wait.

    Args:
        run: What it works on.
        environment: Its variables; None is those of this process.
    """
    with run.engine_log.open("ab") as log:
        return subprocess.Popen(
            # Nothing in the current directory may stand in for a module of ours.
            [sys.executable, "-P", "-m", "autotune.tuning", str(run.path.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment,
        )


def library_versions() -> dict[str, str]:
    """Versions of the libraries that decide what is measured, without importing them."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
