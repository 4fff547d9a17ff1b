from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from probes.collectives import wires
from probes.link import Wires
from tests.testing.nvml_binding import NVMLError, scene_binding

NOT_SUPPORTED = 3


def binding(*devices: dict[str, Any]) -> ModuleType:
    """A binding whose devices tell of their wires."""
    module = scene_binding({"devices": devices})

    def recall(field: str) -> Any:
        def answer(device: dict[str, Any], *more: Any) -> Any:
            if field not in device:
                raise NVMLError(NOT_SUPPORTED)
            return device[field]

        return answer

    def nvlink(device: dict[str, Any], number: int) -> int:
        states: list[int] = device.get("nvlinks", [])
        if number >= len(states):
            raise NVMLError(NOT_SUPPORTED)
        return states[number]

    functions = SimpleNamespace(
        nvmlDeviceGetNvLinkState=nvlink,
        nvmlDeviceGetCurrPcieLinkGeneration=recall("generation"),
        nvmlDeviceGetCurrPcieLinkWidth=recall("width"),
        nvmlDeviceGetMaxPcieLinkGeneration=recall("max_generation"),
        nvmlDeviceGetMaxPcieLinkWidth=recall("max_width"),
        nvmlDeviceGetTopologyCommonAncestor=lambda one, other: one["near"],
    )
    for name, function in vars(functions).items():
        setattr(module, name, function)
    return module


def test_wires_of_two_devices() -> None:
    device = {"nvlinks": [1, 1, 0], "width": 8, "max_width": 16, "generation": 4, "near": 30}
    first, second = wires.look(binding(device, {"near": 10}))
    assert first == Wires(
        device_index=0,
        num_nvlinks=2,
        pcie_generation=4,
        pcie_width=8,
        max_pcie_width=16,
        peers=((1, "the host bridge"),),
    )
    assert second == Wires(device_index=1, peers=((0, "one PCIe switch"),))


def test_half_of_the_lanes_are_said() -> None:
    finding = wires.narrow(Wires(device_index=3, pcie_width=8, max_pcie_width=16))
    assert finding is not None
    assert finding.cause.startswith("Device 3 runs on 8 PCIe lanes of 16")
    assert wires.narrow(Wires(device_index=3, pcie_width=16, max_pcie_width=16)) is None
    assert wires.narrow(Wires(device_index=3)) is None


def test_an_old_binding_and_a_missing_driver_tell_nothing() -> None:
    (only,) = wires.look(scene_binding({"devices": [{}]}))
    assert only == Wires(device_index=0)
    assert wires.look(scene_binding({"devices": [], "init_error": "LibraryNotFound"})) == ()
    assert wires.look(scene_binding({"devices": [{"lost": True}]})) == ()
