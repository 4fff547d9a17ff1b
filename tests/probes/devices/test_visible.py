from __future__ import annotations

import pytest

from probes.devices.nvml import NvmlDevice, NvmlView
from probes.devices.visible import select

CARDS = tuple(NvmlDevice(index=i, uuid=f"GPU-{c * 4}", name="A") for i, c in enumerate("abc"))
VIEW = NvmlView(devices=CARDS)
PARENT = NvmlDevice(index=3, uuid="GPU-dddd", name="A", is_divided=True)
INSTANCES = tuple(
    NvmlDevice(index=3, uuid=f"MIG-{c * 4}", name="A 1g", is_instance=True) for c in "xy"
)


def _indices(value: str | None) -> list[int]:
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    return [device.index for device in select(VIEW, environment).devices]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("  ", []),
        ("-1", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 2 , 0 ", [2, 0]),
        ("0,-1,1", [0]),
        ("0,7,1", [0]),
        ("1x,0", [1, 0]),
        ("none", []),
        ("1,1", []),
        ("GPU-bbbb", [1]),
        ("GPU-b", [1]),
        ("GPU-", []),
        ("GPU-cccc,GPU-aaaa", [2, 0]),
        ("GPU-zzzz,GPU-aaaa", []),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(value: str | None, expected: list[int]) -> None:
    assert _indices(value) == expected


@pytest.mark.parametrize("value", [None, "0", "2,1"])
def test_nothing_is_said_of_what_is_in_order(value: str | None) -> None:
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert select(VIEW, environment).findings == ()


def test_a_device_named_twice_is_said() -> None:
    (finding,) = select(VIEW, {"CUDA_VISIBLE_DEVICES": "1,1"}).findings
    assert "twice" in finding.cause
    assert finding.is_problem


def test_hiding_everything_is_a_remark() -> None:
    (finding,) = select(VIEW, {"CUDA_VISIBLE_DEVICES": ""}).findings
    assert not finding.is_problem
    assert select(NvmlView(), {"CUDA_VISIBLE_DEVICES": ""}).findings == ()


def test_one_instance_stands_for_a_divided_device() -> None:
    view = NvmlView(devices=(PARENT, *INSTANCES))
    assert select(view, {}).devices == INSTANCES[:1]
    chosen = select(view, {"CUDA_VISIBLE_DEVICES": "MIG-yyyy"}).devices
    assert chosen == INSTANCES[1:]
    both = select(view, {"CUDA_VISIBLE_DEVICES": "MIG-yyyy,MIG-xxxx"}).devices
    assert both == INSTANCES[1:]


def test_order_is_certain_for_equal_cards_uuids_and_bus_order() -> None:
    mixed = NvmlView(devices=(CARDS[0], NvmlDevice(index=1, uuid="GPU-bbbb", name="B")))
    assert select(VIEW, {}).is_order_certain
    assert not select(mixed, {}).is_order_certain
    assert not select(mixed, {"CUDA_VISIBLE_DEVICES": "1"}).is_order_certain
    assert select(mixed, {"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}).is_order_certain
    assert select(mixed, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).is_order_certain
