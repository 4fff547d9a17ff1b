"""Readings of the device by a stand-in for it, and of this process by the system."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from autotune.trial import device as device_module
from autotune.trial.device import (
    AcceleratorPeak,
    allocated_bytes,
    current_device,
    fence_data,
    free_and_total_bytes,
    high_water_bytes,
    read_peak,
    reset_high_water,
    reset_peak,
    resident_bytes,
    synchronize,
)

MIB = 2**20
GIB = 2**30
CUDA = torch.device("cuda")
CPU = torch.device("cpu")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class StandIn:
    """What torch says of an accelerator, as recorded, and what it was asked to do."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def is_available(self) -> bool:
        return True

    def current_accelerator(self) -> torch.device:
        return CUDA

    def synchronize(self) -> None:
        self.asked.append("synchronize")

    def empty_cache(self) -> None:
        self.asked.append("empty_cache")

    def reset_peak_memory_stats(self) -> None:
        self.asked.append("reset_peak_memory_stats")

    def memory_allocated(self) -> int:
        return 3 * GIB

    def memory_reserved(self) -> int:
        return 5 * GIB

    def max_memory_allocated(self) -> int:
        return 6 * GIB

    def max_memory_reserved(self) -> int:
        return 7 * GIB

    def get_memory_info(self) -> tuple[int, int]:
        return 60 * GIB, 80 * GIB

    mem_get_info = get_memory_info


@pytest.fixture(params=["general", "backend"])
def stand_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The statistics stand in the general module, or in the backend's where it has none."""
    found = StandIn()
    if request.param == "general":
        monkeypatch.setattr(torch, "accelerator", found)
    else:
        few = {
            name: getattr(found, name)
            for name in ("is_available", "current_accelerator", "synchronize")
        }
        monkeypatch.setattr(torch, "accelerator", SimpleNamespace(**few))
        monkeypatch.setattr(torch, "cuda", found)
    return found


def test_readings_of_an_accelerator(stand_in: StandIn) -> None:
    assert current_device() == CUDA
    assert free_and_total_bytes(CUDA) == (60 * GIB, 80 * GIB)
    assert allocated_bytes(CUDA) == 3 * GIB
    synchronize(CUDA)
    reset_peak(CUDA)
    assert stand_in.asked == ["synchronize", "empty_cache", "reset_peak_memory_stats"]


@pytest.mark.parametrize(
    ("others_gib", "outside_gib"),
    # 20 GiB are used, 5 of them by the allocator; others may have left meanwhile.
    [(0, 15), (13, 2), (40, 0)],
)
def test_what_is_used_beside_the_allocator_and_others_is_outside(
    stand_in: StandIn, others_gib: int, outside_gib: int
) -> None:
    assert read_peak(CUDA, others_gib * GIB) == AcceleratorPeak(6 * GIB, 7 * GIB, outside_gib * GIB)


def test_without_an_accelerator_it_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "accelerator", SimpleNamespace(is_available=lambda: False))
    assert current_device() == CPU
    assert allocated_bytes(CPU) == 0
    synchronize(CPU)
    monkeypatch.delattr(torch, "accelerator")
    assert current_device() == CPU


def test_resident_bytes_are_those_of_this_process() -> None:
    assert resident_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


@on_linux
def test_the_high_water_mark_starts_over() -> None:
    block = bytearray(96 * MIB)
    block[::4096] = b"x" * len(block[::4096])
    before = high_water_bytes()
    assert before is not None
    assert before >= resident_bytes() - MIB
    del block
    reset_high_water()
    after = high_water_bytes()
    assert after is not None
    assert before - after > 80 * MIB


def test_marks_and_fences_are_left_out_where_the_system_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Nowhere:
        def __init__(self, path: str) -> None:
            pass

        def read_text(self) -> str:
            raise FileNotFoundError

        def write_text(self, text: str) -> None:
            raise PermissionError

    monkeypatch.setattr(device_module, "Path", Nowhere)
    set_limits: list[object] = []
    monkeypatch.setattr(resource, "setrlimit", lambda *limits: set_limits.append(limits))
    reset_high_water()
    assert high_water_bytes() is None
    fence_data(MIB)
    assert set_limits == []


FENCED = """
import json, sys
import numpy as np
import torch
from dataclasses import asdict
from autotune.trial.device import fence_data
from autotune.trial.failure import outcome_of

MIB = 2**20
fence_data(256 * MIB)
found = {}
small = torch.ones(64 * MIB // 4)
found["small"] = small.numel()
for name, make in {
    "torch": lambda: torch.ones(2048 * MIB // 4),
    "numpy": lambda: np.ones(2048 * MIB // 8),
    "python": lambda: bytearray(2048 * MIB),
}.items():
    try:
        make()
    except Exception as error:
        found[name] = asdict(outcome_of(error))
del small
found["after"] = torch.ones(64 * MIB // 4).numel()
json.dump(found, sys.stdout)
"""


@on_linux
def test_a_fence_makes_the_allocator_refuse_and_that_is_host_memory() -> None:
    child = subprocess.run(
        [sys.executable, "-c", FENCED], capture_output=True, text=True, check=True
    )
    found = json.loads(child.stdout)
    for name in ("torch", "numpy", "python"):
        assert found[name]["kind"] == "out_of_memory"
        assert (found[name]["where"], found[name]["is_certain"]) == ("host", True)
    assert "DefaultCPUAllocator" in found["torch"]["cause"]
    assert found["numpy"]["cause"].startswith("Unable to allocate 2.00 GiB")
    assert found["small"] == found["after"] == 16 * MIB
