"""Trials on a real accelerator: no fork, allocator statistics, a fresh model for every command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autotune.configuration import Checkpointing, Configuration
from autotune.outcome import Measured, OutOfMemory
from tests.testing import jobs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator here"),
]


def test_a_search_runs_on_the_device_and_memory_comes_from_its_allocator(tmp_path: Path) -> None:
    asked = jobs.request(jobs.language_model(tmp_path, num_rows=200), tmp_path)
    with jobs.searched(asked, tmp_path) as run:
        assert run.job.machine.device.kind != "cpu"
        assert run.job.pool.is_on_device
        assert run.history.measured
        for trial in run.history.measured:
            memory = trial.measured.memory
            assert 0 < memory.allocated_bytes <= memory.reserved_bytes
            assert memory.total_bytes == memory.reserved_bytes + memory.outside_bytes
            assert memory.outside_bytes > 0, "a context lies outside the allocator"


def test_the_same_configuration_twice_in_one_process_gives_the_same_losses_and_bytes(
    tmp_path: Path,
) -> None:
    asked = jobs.request(jobs.language_model(tmp_path, num_rows=200), tmp_path, trials=1)
    with jobs.searched(asked, tmp_path) as run:
        configuration = Configuration(
            micro_batch_size=4,
            accumulation_steps=2,
            checkpointing=Checkpointing(every_n_layers=1),
        )
        first, second = (run.engine.run(configuration, "search", "again") for _ in range(2))
        assert isinstance(first.outcome, Measured)
        assert isinstance(second.outcome, Measured)
        assert second.outcome.memory.allocated_bytes == first.outcome.memory.allocated_bytes
        assert second.outcome.speed.losses[0] == pytest.approx(
            first.outcome.speed.losses[0], rel=1e-4
        )


def test_a_limit_on_the_device_is_kept_and_the_worker_is_replaced(tmp_path: Path) -> None:
    asked = jobs.request(
        jobs.language_model(tmp_path), tmp_path, memory_limit_bytes=300 * 2**20, trials=2
    )
    with jobs.searched(asked, tmp_path) as run:
        assert run.history.trials
        for trial in run.history.trials:
            assert isinstance(trial.outcome, OutOfMemory)
            assert trial.outcome.where == "device"
