"""The same job has the same name in every process; another job has another one."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch

from autotune.workload.live.identity import describe, digest_of
from autotune.workload.live.job import Job, job_of_trainer
from tests.testing import live

_SCRIPT = """
import sys
from pathlib import Path
from autotune.workload.live.identity import digest_of
from autotune.workload.live.job import job_of_trainer
from tests.testing import live
print(digest_of(job_of_trainer(live.trainer(Path(sys.argv[1])))))
"""


def digest(directory: Path, **changes: object) -> str:
    return digest_of(job_of_trainer(live.trainer(directory, **changes)))  # type: ignore[arg-type]


def test_another_process_finds_the_same_name(tmp_path: Path) -> None:
    root = Path(__file__).parents[4]
    # Sets of text come in another order there than here.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    found = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": seed},
    ).stdout
    assert found == digest(tmp_path) + "\n"


def test_values_of_weights_and_places_do_not_count(tmp_path: Path) -> None:
    model = live.gpt2()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert digest(tmp_path, model=model) == digest(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    "change",
    [
        lambda job: replace(job, model=live.gpt2(num_layers=3)),
        lambda job: replace(job, train_dataset=live.Tokens(33)),
        lambda job: replace(job, train_dataset=live.Tokens(lengths=(3, 9, 5, 12, 7, 4, 17, 6))),
        lambda job: replace(job, arguments={**job.arguments, "optim": "sgd"}),
        lambda job: replace(job, data_collator=lambda rows: live.pad(rows[:1])),
        lambda job: replace(job, trainer_class=live.WeightedTrainer),
        lambda job: replace(job, trainer_attributes={**job.trainer_attributes, "weight": 2.0}),
        lambda job: replace(job, configuration=replace(job.configuration, micro_batch_size=4)),
        lambda job: replace(
            job, optimizers=(torch.optim.SGD(job.model.parameters(), lr=0.1), None)
        ),
    ],
)
def test_every_change_that_may_matter_counts(change: Callable[[Job], Job], tmp_path: Path) -> None:
    job = job_of_trainer(live.trainer(tmp_path))
    assert digest_of(change(job)) != digest_of(job)


def test_frozen_parameters_count(tmp_path: Path) -> None:
    model = live.gpt2()
    model.transformer.wpe.weight.requires_grad_(False)
    assert digest(tmp_path, model=model) != digest(tmp_path)


class _Random(live.Tokens):
    def __getitem__(self, index: int) -> dict[str, list[int]]:
        raise AssertionError("a row was read")


def test_nothing_of_the_users_is_run(tmp_path: Path) -> None:
    job = replace(job_of_trainer(live.trainer(tmp_path)), train_dataset=_Random())
    before = (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state())  # type: ignore[index]
    assert digest_of(job) == digest_of(job)
    assert random.getstate() == before[0]
    assert numpy.random.get_state()[1].tolist() == before[1]  # type: ignore[index]
    assert torch.equal(torch.get_rng_state(), before[2])


def make_one(num: int) -> Callable[[], object]:
    def make() -> object:
        return num

    return make


def test_what_a_function_closes_over_counts() -> None:
    assert digest_of(make_one(1)) == digest_of(make_one(1))
    assert digest_of(make_one(1)) != digest_of(make_one(2))
    assert describe(functools.partial(max, 1)) != describe(functools.partial(max, 2))


def test_a_long_sequence_is_known_by_its_length_and_some_of_its_items() -> None:
    assert describe(list(range(10_000))) != describe(list(range(10_001)))
    assert len(str(describe(list(range(10_000))))) < 2000


def test_something_that_refers_to_itself_ends() -> None:
    ring: list[object] = []
    ring.append(ring)
    assert describe(ring)
