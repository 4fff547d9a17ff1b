"""One finished run of the library call, made once for all tests that look at it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import autotune
from tests.testing import live
from tests.testing.untouched import Snapshot

ROOT = Path(__file__).parents[2]
SHORT = autotune.Budget(trials=2, seconds=240.0)


@dataclass(frozen=True)
class Tuned:
    """A plain Trainer that was tuned."""

    directory: Path
    """Where the job lives; its runs are in `runs`."""
    found: autotune.Recommendation
    before: Snapshot
    after: Snapshot


def tune_once(directory: Path) -> Tuned:
    """Tunes the job of `live.trainer`, for real."""
    trainer = live.trainer(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        before = Snapshot.of(trainer, directory)
        found = autotune.tune(trainer, budget=SHORT, run_dir=directory / "runs", display="none")
        after = Snapshot.of(trainer, directory)
    return Tuned(directory=directory, found=found, before=before, after=after)
