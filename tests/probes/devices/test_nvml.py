from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import pytest

from probes.devices.nvml import FAULTS, look
from tests.testing.nvml_binding import CODES, MIB, scene_binding

CARD: dict[str, Any] = {
    "uuid": "GPU-1",
    "name": "A",
    "memory": {"total": 8192, "free": 8000, "used": 192},
    "power_mw": 61500,
    "temp": 44,
    "util": 12,
    "procs": [],
}


def test_every_figure_of_a_device() -> None:
    view = look(scene_binding({"devices": [CARD]}))
    (device,) = view.devices
    assert view.driver == "600.00"
    assert view.fault is None
    assert (device.total_bytes, device.free_bytes) == (8192 * MIB, 8000 * MIB)
    assert (device.power_w, device.temperature_celsius) == (61.5, 44)
    assert device.utilization_percent == 12.0
    assert (device.is_divided, device.is_instance) == (False, False)


def test_a_device_that_answers_nothing_is_still_listed() -> None:
    (device,) = look(scene_binding({"devices": [{}]})).devices
    assert device.index == 0
    assert device.name == "NVIDIA device"
    assert device.total_bytes is None
    assert device.processes == ()
    assert device.power_w is None
    assert device.fault is None


@pytest.mark.parametrize("error", sorted(CODES))
def test_every_fault_at_the_start_is_an_answer(error: str) -> None:
    view = look(scene_binding({"devices": [], "init_error": error}))
    assert view.fault is not None
    assert view.fault is FAULTS[CODES[error]]
    assert view.devices == ()
    assert view.is_library_missing == (error == "LibraryNotFound")


def test_an_unknown_code_is_told_as_it_is() -> None:
    binding = scene_binding({"devices": []})

    def start() -> None:
        raise binding.NVMLError(4711)

    binding.nvmlInit = start  # type: ignore[attr-defined]
    fault = look(binding).fault
    assert fault is not None
    assert (fault.code, fault.cause) == (4711, "NVML answers 4711")


def test_instances_are_found_across_gaps() -> None:
    instance = {"uuid": "MIG-x", "name": "A 1g", "memory": {"total": 100, "free": 90}}
    scene = {"devices": [{**CARD, "mig_mode": 1, "mig": [None, None, instance]}, CARD]}
    parent, found, other = look(scene_binding(scene)).devices
    assert (parent.is_divided, parent.index) == (True, 0)
    assert (found.is_instance, found.index, found.uuid) == (True, 0, "MIG-x")
    assert found.total_bytes == 100 * MIB
    assert (other.is_divided, other.index) == (False, 1)


def test_this_process_is_not_another() -> None:
    procs = [{"pid": os.getpid(), "mib": 500}, {"pid": 1, "mib": 7}]
    (device,) = look(scene_binding({"devices": [{**CARD, "procs": procs}]})).devices
    assert [(p.process, p.used_bytes) for p in device.processes] == [(1, 7 * MIB)]


def test_no_permission_for_a_device_is_its_fault() -> None:
    binding = scene_binding({"devices": [CARD, CARD]})
    handle = binding.nvmlDeviceGetHandleByIndex

    def forbidding(index: int) -> object:
        if index == 0:
            raise binding.NVMLError(4)
        return handle(index)

    binding.nvmlDeviceGetHandleByIndex = forbidding  # type: ignore[attr-defined]
    first, second = look(binding).devices
    assert first.fault is FAULTS[4]
    assert second.total_bytes == 8192 * MIB


def test_the_installed_binding_never_raises() -> None:
    view = look()
    assert view.devices or view.fault is not None or view.driver is not None


def test_a_missing_binding_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    fault = look().fault
    assert fault is not None
    assert fault.remedy is not None
    assert "nvidia-ml-py" in fault.remedy


def test_a_foreign_module_of_that_name_is_a_fault() -> None:
    assert look(ModuleType("pynvml")).fault is FAULTS[13]


def test_what_ctypes_raises_is_a_fault_too() -> None:
    binding = scene_binding({"devices": [CARD]})

    def broken(device: object) -> None:
        raise OSError("symbol not found\nin the library")

    binding.nvmlDeviceGetMemoryInfo = broken  # type: ignore[attr-defined]
    (device,) = look(binding).devices
    assert (device.name, device.total_bytes) == ("A", None)
    binding.nvmlInit = lambda: broken(None)  # type: ignore[attr-defined]
    fault = look(binding).fault
    assert fault is not None
    assert fault.cause == "pynvml raised OSError: symbol not found"


def test_every_fault_reads_as_a_clause() -> None:
    for fault in FAULTS.values():
        assert not fault.cause.endswith(".")
        assert fault.remedy is None or fault.remedy.endswith(".")
