"""What a device loses to a process beside its tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from probes import context
from probes.child import ChildResult
from probes.collectives.buffers import buffers_reading
from probes.context import Levels, free_bytes, measure, readings, train_step
from probes.machine import Device
from probes.reading import CONTEXT, WORKSPACES
from tests.testing.nvml_binding import scene_binding

MIB = 2**20
LEVELS = Levels(
    free_before_bytes=24_000 * MIB,
    free_after_bytes=23_560 * MIB,
    reserved_bytes=42 * MIB,
    allocated_bytes=17_039_360,
)
DEVICE = Device(
    kind="cuda",
    index=1,
    name="NVIDIA GeForce RTX 4090",
    total_bytes=24_564 * MIB,
    free_bytes=24_000 * MIB,
    memory_from="NVML",
    nvml_index=3,
)


def test_what_the_allocator_holds_is_not_the_context() -> None:
    lost, kept = readings(LEVELS)
    assert (lost.name, lost.unit, lost.value) == (CONTEXT, "bytes", 398 * MIB)
    assert (kept.name, kept.unit, kept.value) == (WORKSPACES, "bytes", 17_039_360)


def test_a_device_that_another_process_left_meanwhile_tells_no_context() -> None:
    freed = replace(LEVELS, free_after_bytes=24_500 * MIB)
    assert [reading.name for reading in readings(freed)] == [WORKSPACES]


def test_the_child_is_asked_for_the_device_by_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []

    def run(module: str, arguments: list[str], *, time_limit_s: float) -> ChildResult:
        asked.append((module, arguments, time_limit_s))
        lines = ("a library talks", json.dumps({**_fields(LEVELS)}))
        return ChildResult(lines=lines, returncode=0, is_timed_out=False, last_error="")

    monkeypatch.setattr(context, "run_module", run)
    assert measure(DEVICE, time_limit_s=20.0) == readings(LEVELS)
    assert asked == [("probes.context", ["cuda", "1", "3"], 20.0)]


def _fields(levels: Levels) -> dict[str, int]:
    return {name: getattr(levels, name) for name in Levels.__dataclass_fields__}


@pytest.mark.parametrize(
    "device",
    [
        replace(DEVICE, nvml_index=None),
        replace(DEVICE, mig=True),
        replace(DEVICE, is_integrated=True),
    ],
    ids=["no NVML", "MIG", "shares the host's memory"],
)
def test_where_nobody_can_be_asked_before_torch_nothing_is_measured(device: Device) -> None:
    assert measure(device, time_limit_s=1.0) == []


def test_a_child_that_breaks_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ChildResult(lines=(), returncode=-11, is_timed_out=False, last_error="")
    monkeypatch.setattr(context, "run_module", lambda *_, **__: broken)
    assert measure(DEVICE, time_limit_s=1.0) == []


def test_free_memory_comes_from_nvml_without_a_context() -> None:
    scene = {"devices": [{"memory": {"total": 100, "free": 90, "used": 10}}, {}]}
    binding = scene_binding(scene)
    assert free_bytes(binding, 0) == 90 * MIB
    assert free_bytes(binding, 1) is None
    assert free_bytes(ModuleType("pynvml"), 0) is None


def test_the_step_trains_with_every_kind_of_kernel() -> None:
    ran: list[str] = []

    class Heard(TorchDispatchMode):
        def __torch_dispatch__(
            self,
            func: Callable[..., object],
            types: object,
            args: tuple[object, ...] = (),
            kwargs: Mapping[str, object] | None = None,
        ) -> object:
            ran.append(str(func))
            return func(*args, **(kwargs or {}))

    with Heard():  # type: ignore[no-untyped-call]
        train_step(torch, torch.device("cpu"))
    for part in ("addmm", "attention", "attention_for_cpu_backward", "mm", "_foreach"):
        assert any(part in name for name in ran), part


def test_the_buffers_of_an_exchange_are_what_the_device_lost() -> None:
    reading = buffers_reading(20_000 * MIB, 19_456 * MIB)
    assert reading is not None
    assert (reading.name, reading.value) == ("communication buffers", 544 * MIB)
    assert buffers_reading(None, None) is None
    grown = buffers_reading(10, 20)
    assert grown is not None
    assert grown.value == 0
