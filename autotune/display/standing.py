"""How a run stands: its journal tells most of it, its directory and its lease the rest."""

from __future__ import annotations

import time
from typing import Literal, TypeAlias

from autotune import lease
from autotune.display import wording
from autotune.run_directory import RunDirectory
from autotune.view import RunView

Beginning: TypeAlias = Literal["not started", "starting", "killed"]
"""How a run stands of which its journal tells nothing, and that no engine holds."""

START_PATIENCE_S = 30.0
"""How long an engine may take from its start to its first word."""


def beginning(run: RunDirectory, now_unix_s: float) -> Beginning:
    """Tells a run that nobody started from one whose engine loads, or ended without a word.

    Args:
        run: A run whose journal tells nothing, and that no engine holds.
        now_unix_s: The wall clock.
    """
    try:
        # It is written anew whenever an engine is about to be started.
        age_s = now_unix_s - run.request.stat().st_mtime
        run.engine_log.stat()
    except OSError:
        return "not started"
    return "starting" if age_s < START_PATIENCE_S else "killed"


def is_held(run: RunDirectory) -> bool:
    """Whether a living engine works on a run."""
    held = lease.read(run.lease)
    return held is not None and held.is_alive


def state(run: RunDirectory, view: RunView) -> str:
    """The state of a run in a word or two."""
    is_alive = is_held(run)
    if view.started is None and view.ended is None and not is_alive:
        return beginning(run, time.time())
    return wording.run_state(view, is_alive=is_alive)
