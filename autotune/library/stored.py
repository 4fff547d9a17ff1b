"""Finds the answer that the same job was given before, on the same machine and libraries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from autotune import lease
from autotune import request as requests
from autotune.errors import JournalError
from autotune.folding import view_of
from autotune.library.recommendation import Recommendation
from autotune.request import Request
from autotune.run_directory import RunDirectory, list_runs
from autotune.starting import library_versions
from autotune.view import RunView
from autotune.workload.spec import Capsule
from probes import store
from probes.devices import nvml
from probes.known import refreshed


def finished(request: Request, root: Path) -> Recommendation | None:
    """The newest recommendation for the same request, if it still holds.

    Args:
        request: What would be asked now.
        root: Where runs are kept.
    """
    machine = refreshed(nvml.look(), store.cache_directory(), environment=os.environ)
    if machine is None:
        return None
    for run, view in _runs(request, root):
        if view.recommendation is None or view.ended is None or view.ended.exit_code != 0:
            continue
        if view.machine is None or view.machine.machine.get("digest") != machine.digest:
            continue
        try:
            found = Recommendation.of(view.recommendation, run=run.path)
        except JournalError:
            # Of another shape, as another version writes it.
            continue
        occupied = found.evidence.recommendation.measured.memory.total_bytes
        if occupied <= machine.device.usable_bytes:
            return found
    return None


def unfinished(request: Request, root: Path, name: str | None = None) -> RunDirectory | None:
    """The newest run of the same request that was stopped or died before its answer.

    Args:
        request: What would be asked now.
        root: Where runs are kept.
        name: The run that is meant; None is whichever.
    """
    for run, view in _runs(request, root):
        if name not in (None, run.name):
            continue
        held = lease.read(run.lease)
        if held is not None and held.is_alive:
            continue
        is_open = view.ended is None or view.ended.reason in ("stopped", "Unconfirmed")
        return run if is_open and view.recommendation is None else None
    return None


def _runs(request: Request, root: Path) -> Iterator[tuple[RunDirectory, RunView]]:
    """Runs of the same request under the same libraries, newest first."""
    for run in reversed(list_runs(root)):
        try:
            before = requests.load(run)
            if not is_same(before, request):
                continue
            view = view_of(run)
        except JournalError:
            # It hides no other.
            continue
        if view.started is not None and view.started.versions == library_versions():
            yield run, view


def is_same(before: Request, now: Request) -> bool:
    """Whether two requests of library calls ask for the same."""
    one, other = before.workload, now.workload
    if not isinstance(one, Capsule) or not isinstance(other, Capsule):
        return False
    kept = ("goal", "budget", "sampler", "seed", "processes", "local_sgd", "total_steps")
    return one.digest == other.digest and all(
        getattr(before, name) == getattr(now, name) for name in kept
    )
