"""The same job has the same name in every process; another job has another one."""

from __future__ import annotations

import array
import functools
import logging
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import datasets
import numpy
import pandas  # type: ignore[import-untyped]
import pyarrow
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from autotune.workload.live import identity
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


class _Slots:
    __slots__ = ("rows", "unset")

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: numpy.zeros((8, 128)), lambda: numpy.zeros((8, 512))),
        (lambda: numpy.zeros(8), lambda: numpy.ones(8)),
        (lambda: numpy.zeros(2**18), lambda: numpy.arange(2.0**18)),
        (lambda: numpy.array([[1], [1, 2]], object), lambda: numpy.array([[1], [1, 3]], object)),
        (lambda: numpy.int64(3), lambda: numpy.int64(4)),
        (lambda: pandas.DataFrame({"text": ["a"] * 9}), lambda: pandas.DataFrame({"text": ["a"]})),
        (lambda: pyarrow.table({"text": ["a"]}), lambda: pyarrow.table({"text": ["a", "b"]})),
        (lambda: _Slots([1]), lambda: _Slots([2])),
        (lambda: range(8), lambda: range(9)),
        (lambda: array.array("l", [1, 2]), lambda: array.array("l", [1, 3])),
        (lambda: re.compile("a"), lambda: re.compile("b")),
        (lambda: datasets.Dataset.from_dict({"a": [1]}), lambda: datasets.Dataset.from_dict({})),
    ],
)
def test_whatever_data_are_kept_in_counts(
    make: Callable[[], object], other: Callable[[], object]
) -> None:
    assert describe([make()]) == describe([make()])
    assert describe([make()]) != describe([other()])


def test_a_large_table_is_known_by_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_MAX_PICKLED_BYTES", 1000)
    small, large = (pyarrow.table({"n": range(size)}) for size in (10, 10_000))
    assert describe(small) != describe(large)
    assert describe(large) == describe(pyarrow.table({"n": range(10_000)}))


class CharTokenizer:
    """A tokenizer of somebody's own, without a length."""

    def __init__(self, characters: str) -> None:
        self.characters = characters


def test_tokenizers_of_any_kind_are_told_apart() -> None:
    assert describe(CharTokenizer("ab")) == describe(CharTokenizer("ab"))
    assert describe(CharTokenizer("ab")) != describe(CharTokenizer("abc"))
    one, other = (Tokenizer(WordLevel({"a": 0, "b": number}, "a")) for number in (1, 2))
    assert describe(one) != describe(other)


def test_what_a_library_keeps_is_not_gone_through() -> None:
    """A module that a function closes over, a logger: they lead to everything that is loaded."""
    here = torch

    def collate(rows: list[object]) -> object:
        return here.tensor(rows)

    logger = logging.getLogger("tests.identity")
    described = str(describe([collate, logger]))
    assert len(described) < 2000
    logging.getLogger("tests.identity.of_another_module")
    assert str(describe([collate, logger])) == described


def test_where_a_generator_stands_does_not_count() -> None:
    for generator in (random.Random(3), numpy.random.default_rng(3), torch.Generator()):
        before = describe([generator])
        assert isinstance(before, list)
        if isinstance(generator, torch.Generator):
            torch.rand(1, generator=generator)
        else:
            generator.random()
        assert describe([generator]) == before
