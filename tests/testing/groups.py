"""Groups of ranks in tests: how they are started, found and seen to be gone."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from probes.kills import read_memory_kills
from probes.ranks.launch import Ranks, rank_command
from tests.testing import links

SCENES = "tests.probes.ranks.rank_scenes"
WHY = "" if read_memory_kills() is None else ", not for want of memory"
"""What is told of a rank that a test killed, where the kernel counts its own kills."""
LIMIT_S = 120.0


def start(
    directory: Path, scene: str, *more: str, ranks: Ranks | None = None
) -> subprocess.Popen[str]:
    """Starts a group of ranks that do what a scene says."""
    group = ranks or Ranks(num_processes=2)
    return links.start(rank_command(SCENES, [str(directory), scene, *more], group))


def said(directory: Path, rank: int) -> dict[str, Any]:
    """What a rank wrote when it began; waits for it."""
    path = directory / f"rank{rank}.json"
    assert wait_for(path.exists), f"rank {rank} did not begin"
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def processes(directory: Path, num: int = 2) -> list[psutil.Process]:
    """The ranks, as soon as all have begun."""
    return [psutil.Process(said(directory, rank)["pid"]) for rank in range(num)]


def wait_for(condition: Callable[[], bool], *, limit_s: float = LIMIT_S) -> bool:
    """Whether a condition came true within a time that only a fault uses up."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def are_gone(found: Sequence[psutil.Process]) -> bool:
    """Whether none runs any more; a zombie waits for its parent alone."""
    return all(
        not process.is_running() or process.status() == psutil.STATUS_ZOMBIE for process in found
    )
