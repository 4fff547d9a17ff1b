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
from probes.errors import ProbeError
from probes.ranks import interfaces

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
        UsageError: The run exists and is not to be resumed, is missing, is worked on, or is
            another job; or the name leads elsewhere, or to something that is no run; or the ranks
            are told to take an interface that is not there.
    """
    check_link(request)
    if resume:
        run = find(run_root, name or "last")
        check_free(run)
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
    check_free(run)
    if run.request.exists() and not fresh:
        raise UsageError(
            f"There is a run {run.name!r} already.",
            "Go on with it by --resume, replace it by --fresh, or choose another --name.",
        )
    run.create()
    if fresh:
        _forget(run)
    requests.save(request, run)
    return run


def check_link(request: Request) -> None:
    """Checks that ranks can take the network interface that the environment names for them.

    Raises:
        UsageError: There is no such interface here.
    """
    if request.processes == 1 or request.alone:
        return
    try:
        interfaces.check_named(os.environ)
    except ProbeError as error:
        raise UsageError(error.cause, error.remedy) from error


def check_free(run: RunDirectory, *, own_process: int | None = None) -> None:
    """Checks that nobody works on a run.

    Args:
        run: The run.
        own_process: Whoever is no stranger there.

    Raises:
        UsageError: A living engine does, or may do so on another machine.
    """
    held = lease.read(run.lease)
    if held is not None and held.process != own_process and held.is_alive:
        raise lease.taken(held, f"The run {run.name!r}", run.lease)


def _same_job(before: Request, now: Request, run: RunDirectory) -> None:
    kept = ("workload", "goal", "baseline_micro_batch_size", "driver", "processes", "local_sgd")
    for field in kept:
        if getattr(before, field) != getattr(now, field):
            raise UsageError(
                f"The run {run.name!r} was started with another {field.replace('_', ' ')}: "
                f"{getattr(before, field)} instead of {getattr(now, field)}.",
                f"Resume it with its own options (`{run.resume_command}`), or start a new run.",
            )


def _forget(run: RunDirectory) -> None:
    """Moves the story of an earlier run of that name aside; nothing is deleted."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    moved = [path for path in (run.journal, run.progress, run.study) if path.exists()]
    # What a trial left is not to be taken for what the next one with its number leaves.
    moved += [run.trials] if run.has_trials else []
    while any(path.with_name(f"{path.name}.{stamp}").exists() for path in moved):
        stamp += "-again"
    for path in moved:
        path.rename(path.with_name(f"{path.name}.{stamp}"))
    run.create()


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
