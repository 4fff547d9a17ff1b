"""Outcomes come back from the journal as they went in."""

from __future__ import annotations

from pathlib import Path

from autotune.events import TrialFinished
from autotune.journal import Journal, read
from autotune.outcome import (
    Distances,
    Exchange,
    Measured,
    MemoryUse,
    Speed,
)

MEASURED = Measured(
    speed=Speed(step_times_s=(0.5, 0.25), step_samples=(4, 4), step_tokens=(0, 0)),
    memory=MemoryUse(
        allocated_bytes=1, reserved_bytes=2, outside_bytes=3, total_bytes=5, method="by hand"
    ),
    samples_per_s=10.7,
    samples_per_s_ci95=(10.0, 11.0),
    exchange=Exchange(
        compute_s=0.06,
        ddp_step_s=0.38,
        exposed_s=0.32,
        averaging_s=0.3,
        averaging_bytes=3_336_192,
        num_collectives_per_step=1.5,
        collectives=("all_gather in get_batch_samples",),
    ),
    distances=Distances(apart_squared=(0.5, 0.25), moved_squared=(3e8, 1e8)),
)


def test_what_was_measured_comes_back_from_the_journal(tmp_path: Path) -> None:
    event = TrialFinished(
        number=3,
        purpose="search",
        configuration={"micro_batch_size": 2},
        outcome=MEASURED,
        wall_s=2.0,
        overhead_s=0.5,
    )
    path = tmp_path / "journal.jsonl"
    with Journal(path, tmp_path / "progress.json") as journal:
        journal.append(event)
    (record,) = read(path)
    assert record.event == event
