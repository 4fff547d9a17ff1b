"""Makes or takes up a run and starts its engine; whoever does that stays light himself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from autotune import control, lease, storage_url
from autotune import request as requests
from autotune.errors import JournalError, UsageError
from autotune.goal import Goal
from autotune.request import Request
from autotune.run_directory import (
    RunDirectory,
    checked_name,
    find,
    list_runs,
    new_name,
    unwritable,
)
from autotune.units import counted, format_bytes, parse_bytes
from autotune.workload.spec import Lora, WorkloadSpec
from probes.errors import ProbeError
from probes.ranks import interfaces

_OPTIONS = {"seed": "training_seed", "baseline_micro_batch_size": "micro_batch_size"}
"""Options that are not called what they fill in."""
LIBRARIES = ("autotune-advisor", "torch", "transformers", "accelerate", "optuna", "datasets")


def prepare(
    request: Request, run_root: Path, name: str | None, *, fresh: bool, resume: bool
) -> RunDirectory:
    """Makes the directory of a new run, or takes up an existing one.

    Args:
        request: What is asked for.
        run_root: Where runs are kept.
        name: The run's name; None makes one up, or takes the job's newest run when resuming.
        fresh: Start over though a run of that name exists.
        resume: Go on with a run that exists.

    Raises:
        UsageError: The run exists and is not to be resumed, is missing, is worked on, or is
            another job; or the name leads elsewhere, or to something that is no run; or the ranks
            are told to take an interface that is not there.
    """
    check_link(request)
    if resume:
        run = to_resume(request, run_root, name)
        check_free(run)
        _same_job(requests.load(run), request, run)
        # What was asked of an engine that has ended is not meant for the next one.
        control.take(run.control)
        requests.save(request, run)
        return run
    name = checked_name(name or new_name(run_root, request.workload.name))
    run = RunDirectory(run_root / name)
    if not os.path.exists(run.request) and _is_taken(run.path):
        raise UsageError(
            f"{run.path} exists and is no run.", "Choose another --name, or another --run-dir."
        )
    check_free(run)
    if os.path.exists(run.request) and not fresh:
        raise UsageError(
            f"There is a run {run.name!r} already.",
            "Go on with it by --resume, replace it by --fresh, or choose another --name.",
        )
    run.create()
    if fresh:
        _forget(run)
    requests.save(request, run)
    return run


def _is_taken(path: Path) -> bool:
    """Whether something that is no run stands in a run's place; an empty directory may."""
    return os.path.exists(path) and not (os.path.isdir(path) and not any(path.iterdir()))


def to_resume(request: Request, run_root: Path, name: str | None) -> RunDirectory:
    """The run to go on with: the one of that name, or the newest of the job.

    Raises:
        UsageError: There is no run.
    """
    for run in reversed(list_runs(run_root)) if name is None else ():
        with contextlib.suppress(JournalError):
            if _difference(requests.load(run), request) is None:
                return run
    return find(run_root, name or "last")


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
    difference = _difference(before, now)
    if difference is not None:
        raise UsageError(
            f"The run {run.name!r} was started with another {difference}.",
            f"Resume it with its own options (`{run.resume_command}`), replace it by --fresh, or "
            "choose another --name.",
        )
    if before.num_nodes != now.num_nodes:
        raise UsageError(
            f"The run {run.name!r} was started on {counted(before.num_nodes, 'machine')}, and "
            f"this call has {now.num_nodes}.",
            "Resume it on as many, with the same --processes.",
        )


def _difference(before: Request, now: Request) -> str | None:
    """What makes two requests different jobs, in words; None where nothing does."""
    kept = ("workload", "goal", "baseline_micro_batch_size", "driver", "processes", "local_sgd")
    for name in kept:
        one, other = getattr(before, name), getattr(now, name)
        if one != other:
            where, one, other = _first_difference(one, other)
            if where and name == "goal":
                return _goal_difference(before.goal, now.goal)
            is_named = name != "workload" or isinstance(before.workload, WorkloadSpec)
            option = _option([name, *where]) if is_named else None
            return f"{option}: {_said(one)} instead of {_said(other)}" if option else name
    return None


def _goal_difference(one: Goal, other: Goal) -> str:
    if _batch(one) != _batch(other):
        return f"--global-batch-size: {_batch(one)} instead of {_batch(other)}"
    return f"--memory-limit: {_limit(one)} instead of {_limit(other)}"


def _batch(goal: Goal) -> str:
    if goal.global_batch_size_range is not None:
        low, high = goal.global_batch_size_range
        return f"{low}..{high}"
    return _said(goal.global_batch_size)


def _limit(goal: Goal) -> str:
    limit = goal.memory_limit_bytes
    return "what is free" if limit is None else _exact(limit)


def _exact(num_bytes: int) -> str:
    """A size as people read it, or in bytes where that is not the whole of it."""
    text = format_bytes(num_bytes)
    return text if parse_bytes(text) == num_bytes else f"{num_bytes} bytes"


def _option(where: list[str]) -> str | None:
    """The option that fills in a part of a request; None for a workload as a whole."""
    match where:
        case ["workload"]:
            return None
        case ["workload", "columns", role]:
            name = f"{role}_column"
        case ["workload", "lora", *part]:
            name = f"lora_{part[0] if part else 'rank'}"
        case _:
            name = _OPTIONS.get(where[-1], where[-1])
    return f"--{name.replace('_', '-')}"


def _said(value: object) -> str:
    """A value as it is given on a command line."""
    match value:
        case None:
            return "the default"
        case bool():
            return "on" if value else "off"
        case tuple() | list():
            return ",".join(map(str, value))
        case Lora():
            return str(value.rank)
        case _:
            return str(value)


def _first_difference(one: object, other: object) -> tuple[list[str], object, object]:
    """Down to the first fields that differ: their names, and both values."""
    if not is_dataclass(one) or type(one) is not type(other):
        return [], one, other
    name = next(f.name for f in fields(one) if getattr(one, f.name) != getattr(other, f.name))
    where, one, other = _first_difference(getattr(one, name), getattr(other, name))
    return [name, *where], one, other


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

    Raises:
        UsageError: Its directory cannot be written.
    """
    try:
        log = run.engine_log.open("ab")
    except OSError as error:
        raise unwritable(run.path, error) from error
    with log:
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
