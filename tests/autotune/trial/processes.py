"""Starts real workers, and looks at what they start."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import psutil
import pytest

from autotune.trial.client import Worker
from autotune.trial.options import WorkerOptions
from autotune.workload.spec import WorkloadSpec, workload_adapter

LOAD_LIMIT_S = 240.0
_PYTHON = sys.executable


def environment() -> dict[str, str]:
    """This process's environment, with one thread to compute with."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def options(
    spec: WorkloadSpec, place: Path, *, isolation: Literal["fork", "inline"] = "fork"
) -> WorkerOptions:
    """What a worker loads; its scratch space is made."""
    scratch = place / "scratch"
    scratch.mkdir(exist_ok=True)
    return WorkerOptions(
        spec=workload_adapter().dump_python(spec, mode="json"),
        scratch=str(scratch),
        working_directory=str(place),
        driver="trainer",
        isolation=isolation,
    )


def start(
    spec: WorkloadSpec,
    place: Path,
    *,
    isolation: Literal["fork", "inline"] = "fork",
    variables: Mapping[str, str] | None = None,
) -> Worker:
    """A worker that has not loaded yet."""
    return Worker(
        options(spec, place, isolation=isolation),
        {**environment(), **(variables or {})},
        place / "worker.log",
    )


def fake(
    monkeypatch: pytest.MonkeyPatch, place: Path, scenario: str, *, device: str = "cpu"
) -> dict[str, str]:
    """Makes every worker a fake one; returns the environment that tells it what to do."""
    program = place / "python"
    script = Path(__file__).with_name("fake_worker.py")
    program.write_text(f'#!/bin/sh\nexec "{_PYTHON}" "{script}" "$@"\n')
    program.chmod(0o700)
    root = str(Path(__file__).parents[3])
    monkeypatch.setattr(sys, "executable", str(program))
    return {**environment(), "PYTHONPATH": root, "FAKE_SCENARIO": scenario, "FAKE_DEVICE": device}


def wait_for(condition: Callable[[], bool], *, limit_s: float = 20.0) -> bool:
    """Whether a condition came true within a time that only a fault uses up."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def forks_of(process: int) -> list[psutil.Process]:
    """Children of a process that still run."""
    try:
        children = psutil.Process(process).children(recursive=True)
        return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []
