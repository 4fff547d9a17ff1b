"""torch's border, met by a stand-in module wherever this machine has no such device."""

from __future__ import annotations

import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from probes.devices.torch_devices import look, memory

MIB = 2**20


def _torch(kind: str, *, num_devices: int = 1, **backend: Any) -> ModuleType:
    module = ModuleType("torch")
    values: dict[str, Any] = {
        "accelerator": SimpleNamespace(
            is_available=lambda: num_devices > 0,
            current_accelerator=lambda: SimpleNamespace(type=kind),
            device_count=lambda: num_devices,
        ),
        "version": SimpleNamespace(cuda="13.0" if kind == "cuda" else None),
        "get_num_threads": lambda: 6,
        kind: SimpleNamespace(**backend),
    }
    for name, value in values.items():
        setattr(module, name, value)
    return module


def _properties(**values: Any) -> Any:
    return lambda index: SimpleNamespace(name=f"Card {index}", **values)


def test_the_installed_torch_on_this_machine() -> None:
    view = look(torch)
    assert view.num_threads == torch.get_num_threads()
    assert len(view.devices) == (
        torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    )


def test_cuda_devices() -> None:
    module = _torch(
        "cuda",
        num_devices=2,
        get_device_properties=_properties(uuid="1234", is_integrated=False),
        mem_get_info=lambda index: (7000 * MIB, 8000 * MIB),
    )
    first, second = look(module).devices
    assert (first.name, second.name, second.index) == ("Card 0", "Card 1", 1)
    assert (first.free_bytes, first.total_bytes) == (7000 * MIB, 8000 * MIB)
    assert first.memory_from == "torch.cuda.mem_get_info"
    assert (first.uuid, first.is_integrated) == ("1234", False)


def test_an_integrated_cuda_device_is_known_as_such() -> None:
    module = _torch(
        "cuda",
        get_device_properties=_properties(is_integrated=True),
        mem_get_info=lambda index: (1 * MIB, 8000 * MIB),
    )
    (device,) = look(module).devices
    assert device.is_integrated
    assert device.uuid is None


def test_mps_has_a_recommended_size_and_shares_the_host() -> None:
    module = _torch(
        "mps",
        recommended_max_memory=lambda: 10000 * MIB,
        driver_allocated_memory=lambda: 400 * MIB,
    )
    (device,) = look(module).devices
    assert (device.name, device.is_integrated) == ("MPS", True)
    assert (device.free_bytes, device.total_bytes) == (9600 * MIB, 10000 * MIB)


def test_the_general_interface_answers_where_the_backends_own_does_not() -> None:
    def unsupported(index: int) -> tuple[int, int]:
        raise RuntimeError("not supported by this driver")

    module = _torch("xpu", get_device_properties=_properties(), mem_get_info=unsupported)
    assert memory(module, "xpu", 0) is None
    module.accelerator.get_memory_info = lambda index: (5 * MIB, 9 * MIB)
    assert memory(module, "xpu", 0) == (5 * MIB, 9 * MIB, "torch.accelerator.get_memory_info")


def test_one_broken_device_leaves_the_others() -> None:
    def properties(index: int) -> SimpleNamespace:
        if index == 0:
            raise RuntimeError("CUDA error: device is lost\nmore text")
        return SimpleNamespace(name="Good")

    module = _torch(
        "cuda",
        num_devices=2,
        get_device_properties=properties,
        mem_get_info=lambda index: (1, 2),
    )
    view = look(module)
    assert [device.index for device in view.devices] == [1]
    assert view.findings[0].cause == "torch cannot use device cuda:0: CUDA error: device is lost."


def test_a_broken_accelerator_is_a_finding() -> None:
    module = _torch("cuda")

    def broken() -> int:
        raise RuntimeError("no kernel driver")

    module.accelerator.device_count = broken
    view = look(module)
    assert view.devices == ()
    assert "no kernel driver" in view.findings[0].cause


def test_a_driver_that_is_too_old_is_said() -> None:
    module = _torch("cuda", num_devices=0)

    def warning() -> bool:
        warnings.warn(
            "CUDA initialization: The NVIDIA driver on your system is too old.", stacklevel=2
        )
        return False

    module.accelerator.is_available = warning
    (finding,) = look(module).findings
    assert "driver on your system is too old" in finding.cause


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator")
def test_a_real_device_tells_its_memory() -> None:
    device = look(torch).devices[0]
    assert device.total_bytes is not None
    assert device.free_bytes is not None
    assert 0 < device.free_bytes <= device.total_bytes
