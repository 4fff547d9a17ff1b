"""The configuration that a run starts from, where the job brings none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from autotune.configuration import Configuration
from autotune.errors import UsageError
from autotune.goal import Goal
from autotune.request import Request
from autotune.search.baseline import baseline_of
from autotune.search.session import Session
from autotune.space import plan
from autotune.workload.spec import WorkloadSpec
from tests.autotune.trial.fake_worker import FACTS


@dataclass
class _Session:
    warnings: list[str] = field(default_factory=list)

    def warn(self, cause: str, remedy: str) -> None:
        self.warnings.append(cause)


def baseline(
    *, global_batch_size: int, rows: int | None, processes: int = 1, micro: int | None = None
) -> tuple[Configuration, list[str]]:
    session = _Session()
    found = baseline_of(
        cast("Session", session),
        Request(
            workload=WorkloadSpec(task="causal-lm"),
            goal=Goal(global_batch_size=global_batch_size),
            processes=processes,
            baseline_micro_batch_size=micro,
        ),
        replace(FACTS, num_rows=rows),
    )
    return found, session.warnings


def test_without_a_number_of_rows_it_is_the_default_one() -> None:
    found, warnings = baseline(global_batch_size=32, rows=None, processes=2)
    assert found == Configuration(micro_batch_size=8, accumulation_steps=2, world_size=2)
    assert warnings == []


@pytest.mark.parametrize(
    ("global_batch_size", "rows", "processes", "micro"),
    [(16, 7, 1, 4), (8, 5, 2, 2), (6, 2, 2, 1), (24, 23, 2, 6), (8, 3, 1, 2)],
)
def test_of_few_rows_every_rank_gets_some_and_it_is_a_candidate(
    global_batch_size: int, rows: int, processes: int, micro: int
) -> None:
    found, warnings = baseline(
        global_batch_size=global_batch_size, rows=rows, processes=processes, micro=None
    )
    assert (found.micro_batch_size, found.world_size) == (micro, processes)
    assert found.global_batch_size == global_batch_size
    assert warnings == [
        f"The data has {rows} rows, fewer than the global batch size {global_batch_size}: every "
        "optimizer step would train on all of them."
    ]
    assert found in plan(baseline=found, num_rows=rows).candidates


def test_fewer_rows_than_processes_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        baseline(global_batch_size=8, rows=1, processes=2)
    assert caught.value.cause == "The data has 1 row, fewer than the 2 processes."
    assert caught.value.remedy is not None
    assert "--processes 1" in caught.value.remedy
