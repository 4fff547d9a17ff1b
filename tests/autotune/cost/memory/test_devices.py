"""Devices by the names that people and drivers write."""

from __future__ import annotations

import pytest

from autotune.cost.memory.devices import DEVICES, find, near_names
from autotune.errors import UsageError

MIB = 2**20


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("RTX 4090 24GB", "RTX 4090"),
        ("4070ti super", "RTX 4070 Ti SUPER"),
        ("RTX 4070 Ti", "RTX 4070 Ti"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("a100 40 gb", "A100 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB"),
        ("NVIDIA H100 PCIe", "H100 80GB"),
        ("H100 NVL", "H100 NVL"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100 16GB"),
        ("A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("L40S", "L40S"),
        ("A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("NVIDIA B200", "B200"),
    ],
)
def test_a_device_is_found_by_every_way_to_write_it(written: str, name: str) -> None:
    assert find(written).name == name


def test_every_device_is_found_by_its_own_name_and_has_memory_as_on_its_sheet() -> None:
    assert len({device.name for device in DEVICES}) == len(DEVICES)
    for device in DEVICES:
        assert find(device.name) == device
        assert 0.93 < device.total_bytes / (device.sheet_gib * 1024 * MIB) < 1.03, device.name
        assert (device.capability is not None) == (device.vendor == "nvidia")


def test_what_is_told_of_a_device() -> None:
    device = find("RTX 4090")
    assert (device.sheet_gib, device.total_bytes) == (24, 24564 * MIB)
    assert (device.architecture, device.capability, device.kind) == ("sm_89", (8, 9), "consumer")
    assert find("B200").capability == (10, 0)
    assert find("RTX 5090").capability == (12, 0)
    assert (find("MI300X").architecture, find("MI300X").capability) == ("gfx942", None)


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("RTX 4900", ["RTX 4090"]),
        ("RTX 4095", ["RTX 4090"]),
        ("H1000", ["H100 80GB"]),
        ("MI300", ["MI300X"]),
        ("A1000", ["A100 40GB", "A100 80GB"]),
    ],
)
def test_a_name_that_is_not_there_is_met_with_the_near_ones(written: str, names: list[str]) -> None:
    with pytest.raises(UsageError, match="There is no device") as caught:
        find(written)
    assert caught.value.remedy is not None
    assert any(name in caught.value.remedy for name in names)
    assert "--device-memory" in caught.value.remedy


def test_a_name_of_several_devices_is_asked_back() -> None:
    with pytest.raises(UsageError, match="may be several devices") as caught:
        find("A100")
    assert caught.value.remedy == "Say which: A100 40GB, A100 80GB."
    with pytest.raises(UsageError, match="may be several") as caught:
        find("4060 Ti")
    assert caught.value.remedy == "Say which: RTX 4060 Ti 16GB, RTX 4060 Ti 8GB."


@pytest.mark.parametrize("written", ["", "nvidia", "GPU", "RTX", "80GB", "🦙"])
def test_a_name_without_a_model_finds_nothing(written: str) -> None:
    with pytest.raises(UsageError):
        find(written)
    assert near_names(written) == near_names(written)
