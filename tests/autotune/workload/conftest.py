"""Tiny models and datasets, made once."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import pytest

from autotune.workload.load import load
from autotune.workload.loaded import LoadedWorkload
from autotune.workload.spec import WorkloadSpec
from tests.testing import tiny_models

Load: TypeAlias = Callable[[WorkloadSpec], LoadedWorkload]


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Loads as a worker does; threads that wait for each other would only slow tiny models."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.bert(tmp_path_factory.mktemp("bert")))


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.gpt2(tmp_path_factory.mktemp("gpt2")))


@pytest.fixture(scope="session")
def t5(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.t5(tmp_path_factory.mktemp("t5")))


@pytest.fixture
def load_here(tmp_path: Path) -> Load:
    """Loads with the test's own directory as working directory, and scratch space beside."""

    def call(spec: WorkloadSpec) -> LoadedWorkload:
        return load(spec, tmp_path / "scratch", tmp_path)

    return call


def rows_of(loaded: LoadedWorkload) -> list[dict[str, Any]]:
    """All training samples."""
    return [dict(row) for row in cast("Iterable[Mapping[str, Any]]", loaded.train_dataset)]


def config_of(loaded: LoadedWorkload) -> Any:
    """The config of the model, whose class is known only at run time."""
    return loaded.model.config


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return str(path)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
