from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from typing import Any

import pytest

from probes import fingerprint as module
from probes.devices.nvml import FAULTS, NvmlDevice, NvmlView
from probes.devices.torch_devices import TorchDevice, TorchView
from probes.fingerprint import fingerprint
from probes.machine import DeviceProcess
from probes.present import present

GIB = 2**30
DEVICE = NvmlDevice(index=0, uuid="GPU-1", name="A", total_bytes=8 * GIB, free_bytes=7 * GIB)
VIEW = NvmlView(driver="600.00", devices=(DEVICE,))


def _digest(view: NvmlView = VIEW, **changes: Any) -> str:
    values: dict[str, Any] = {"num_cores": 2.0, "total_bytes": 32 * GIB, "environment": {}}
    return fingerprint(view, **{**values, **changes}).digest


def test_what_any_minute_changes_does_not_count() -> None:
    busy = replace(
        DEVICE,
        free_bytes=1 * GIB,
        processes=(DeviceProcess(process=3, used_bytes=6 * GIB),),
        utilization_percent=97.0,
        power_w=300.0,
        temperature_celsius=80.0,
    )
    assert _digest(replace(VIEW, devices=(busy,))) == _digest()
    assert _digest(environment={"PATH": "/bin"}) == _digest()
    assert _digest(total_bytes=32 * GIB - 4096) == _digest()


def test_hardware_driver_and_what_chooses_devices_count() -> None:
    others = [
        _digest(replace(VIEW, driver="601.00")),
        _digest(replace(VIEW, devices=(replace(DEVICE, uuid="GPU-2"),))),
        _digest(replace(VIEW, devices=(DEVICE, DEVICE))),
        _digest(NvmlView(fault=FAULTS[9])),
        _digest(num_cores=1.5),
        _digest(total_bytes=64 * GIB),
        _digest(environment={"CUDA_VISIBLE_DEVICES": "0"}),
        _digest(environment={"CUDA_VISIBLE_DEVICES": ""}),
        _digest(environment={"OMP_NUM_THREADS": "1"}),
    ]
    assert len({_digest(), *others}) == 1 + len(others)


def test_libraries_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _digest()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99.0")
    assert _digest() != before


def test_versions_are_named() -> None:
    found = dict(fingerprint(VIEW, num_cores=1, total_bytes=GIB, environment={}).versions)
    assert found["driver"] == "600.00"
    assert {"python", "kernel", "torch", "nvidia-ml-py"} <= found.keys()


def test_the_processor_has_a_name() -> None:
    assert module.processor()


def _likeness(view: NvmlView = VIEW, **changes: Any) -> str:
    values: dict[str, Any] = {"num_cores": 2.0, "total_bytes": 32 * GIB, "environment": {}}
    return fingerprint(view, **{**values, **changes}).likeness


def test_machines_of_one_make_are_alike_whatever_their_serial_numbers() -> None:
    twin = replace(DEVICE, uuid="GPU-2", free_bytes=1 * GIB)
    assert _likeness(replace(VIEW, devices=(twin,))) == _likeness()
    assert _likeness(environment={"CUDA_VISIBLE_DEVICES": "1"}) == _likeness()


def test_machines_of_another_make_driver_or_setting_are_not_alike() -> None:
    others = [
        _likeness(replace(VIEW, driver="601.00")),
        _likeness(replace(VIEW, devices=(replace(DEVICE, name="B"),))),
        _likeness(replace(VIEW, devices=(replace(DEVICE, total_bytes=16 * GIB),))),
        _likeness(replace(VIEW, devices=(DEVICE, DEVICE))),
        _likeness(num_cores=1.5),
        _likeness(total_bytes=64 * GIB),
        _likeness(environment={"OMP_NUM_THREADS": "1"}),
    ]
    assert len({_likeness(), *others}) == 1 + len(others)


def test_which_makes_are_visible_counts_too() -> None:
    seen = [
        present(NvmlView(), TorchView(devices=devices), environment={}).likeness
        for devices in (
            (),
            (TorchDevice(kind="xpu", index=0, name="A", total_bytes=8 * GIB, free_bytes=GIB),),
            (TorchDevice(kind="xpu", index=0, name="B", total_bytes=8 * GIB, free_bytes=GIB),),
        )
    ]
    assert len({*seen}) == 3
    assert present(NvmlView(), TorchView(), environment={}).likeness == seen[0]
