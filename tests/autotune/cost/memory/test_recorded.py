"""Predictions made anew from stored traces, against what real devices held."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.configuration import Configuration
from autotune.cost.memory.allocator_settings import AllocatorSettings
from autotune.cost.memory.outside import Target
from autotune.outcome import MemoryUse
from tests.autotune.cost.memory.traces import MIB, traced
from tests.testing import memory_records
from tests.testing.memory_records import MemoryReading, MemoryRecord

WORKSPACES = 2 * 8_519_680 + 4 * MIB


def record() -> MemoryRecord:
    memory = MemoryUse(
        allocated_bytes=420 * MIB + WORKSPACES,
        reserved_bytes=500 * MIB,
        outside_bytes=400 * MIB,
        total_bytes=900 * MIB,
        method="by hand",
    )
    return MemoryRecord(
        job="by hand",
        target=Target(
            name="a card",
            kind="cuda",
            architecture="sm_89",
            total_bytes=4096 * MIB,
            total_from="as given",
        ),
        settings=AllocatorSettings(),
        traced=traced(),
        readings=(
            MemoryReading(
                configuration=Configuration(micro_batch_size=1, accumulation_steps=2),
                memory=memory,
            ),
        ),
    )


def test_a_record_survives_its_file_and_its_errors_are_relative(tmp_path: Path) -> None:
    memory_records.write(record(), tmp_path / "memory.json")
    again = memory_records.read(json.loads((tmp_path / "memory.json").read_text()))
    assert again == record()
    ((allocated, reserved),) = again.errors()
    # 100 + 200 + 100 of weights, state and gradients, 12 a sample, and 10 that pass.
    assert allocated == pytest.approx((422 * MIB + WORKSPACES) / (420 * MIB + WORKSPACES) - 1)
    assert -0.2 < reserved < 0.2


@pytest.mark.parametrize(
    "file", memory_records.recorded() or [None], ids=lambda f: f.stem if f else "none"
)
def test_what_devices_held_is_predicted(file: Path | None) -> None:
    if file is None:
        pytest.skip("no device has been recorded")
    errors = memory_records.read(json.loads(file.read_text())).errors()
    assert max(abs(allocated) for allocated, _ in errors) <= 0.03
    assert max(abs(reserved) for _, reserved in errors) <= 0.05
