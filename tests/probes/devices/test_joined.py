"""What is said of odd machines: recorded scenes, and more of them built here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from probes.devices.joined import FROM_HOST, FROM_NVML, Found, assumed, join
from probes.devices.nvml import look
from probes.devices.torch_devices import TorchDevice, TorchView
from probes.machine import Device, Host, Machine
from probes.memory import HostMemory
from tests.testing.nvml_binding import scene_binding
from tests.testing.shared import case_folder

MIB = 2**20
HOST = HostMemory(total_bytes=65536 * MIB, available_bytes=50000 * MIB, limit_from="host")
BY_TORCH = "torch.cuda.mem_get_info"


def _torch_view(scene: Mapping[str, Any]) -> TorchView:
    """torch's view of a scene: the devices in its order, each with its context made."""
    is_available = scene.get("torch_cuda_available", True)
    known = {device["uuid"]: device for device in scene["devices"]}
    order = scene.get(
        "cuda_order", [uuid for uuid, device in known.items() if not device.get("lost")]
    )
    if is_available and not known:
        # The scene tells of a device that NVML cannot.
        return TorchView(
            devices=(
                TorchDevice(
                    kind="cuda",
                    index=0,
                    name="Embedded",
                    total_bytes=7000 * MIB,
                    free_bytes=6000 * MIB,
                    memory_from=BY_TORCH,
                ),
            )
        )
    return TorchView(
        devices=tuple(
            TorchDevice(
                kind="cuda",
                index=index,
                name=known[uuid]["name"],
                uuid=uuid.removeprefix("GPU-"),
                total_bytes=known[uuid]["memory"]["total"] * MIB,
                free_bytes=(known[uuid]["memory"]["free"] - 300) * MIB,
                memory_from=BY_TORCH,
            )
            for index, uuid in enumerate(order if is_available else ())
        )
    )


def _found(scene: Mapping[str, Any], torch: TorchView | None = None) -> Found:
    binding = scene_binding(scene)
    nvml = look(binding)
    assert binding.scene.num_started == 0, "NVML was not shut down"
    return join(
        nvml,
        _torch_view(scene) if torch is None else torch,
        HOST,
        processor="Test CPU",
        environment=scene.get("env", {}),
    )


def _recorded(name: str) -> tuple[Found, dict[str, Any]]:
    path = case_folder("20-nvml-odd-devices") / "scenes" / f"{name}.json"
    scene = json.loads(path.read_text())
    return _found(scene), scene["expect"]


def _said(found: Found) -> str:
    return "\n".join(f"{finding.cause} {finding.remedy}" for finding in found.findings)


def test_a_busy_neighbour_is_counted_and_named() -> None:
    found, expected = _recorded("busy-neighbour")
    (device,) = found.devices
    assert device.free_bytes == expected["free_mib"] * MIB
    assert device.usable_bytes <= expected["budget_at_most_mib"] * MIB
    assert [(p.process, p.used_bytes) for p in device.processes] == [(4242, 30100 * MIB)]
    assert "another process holds 30 100 MiB" in _said(found)
    assert "timings are unreliable" in _said(found)


def test_driver_and_library_differ() -> None:
    found, expected = _recorded("driver-library-mismatch")
    assert [device.kind for device in found.devices] == ["cpu"]
    assert sum(device.kind != "cpu" for device in found.devices) == expected["devices"]
    assert "driver and library versions differ" in _said(found)
    assert "Reboot, or reload the driver" in _said(found)
    assert all(finding.is_problem for finding in found.findings)


def test_driver_not_loaded_leaves_the_choice_to_the_user() -> None:
    found, expected = _recorded("driver-not-loaded")
    assert sum(device.kind != "cpu" for device in found.devices) == expected["devices"]
    assert "the NVIDIA driver is not loaded" in _said(found)
    assert "train on the CPU or stop here, as you choose" in _said(found)


def test_without_the_library_torch_tells_the_memory() -> None:
    found, expected = _recorded("embedded-no-library")
    (device,) = found.devices
    assert device.kind == "cuda"
    assert device.memory_from == expected["memory_from"]
    assert (device.total_bytes, device.free_bytes) == (7000 * MIB, 6000 * MIB)
    assert "NVML not available" in _said(found)
    assert "no power or other-process figures" in _said(found)
    assert "No NVIDIA device" not in _said(found)
    assert not any(finding.is_problem for finding in found.findings)


def test_the_smallest_device_decides_and_it_is_said() -> None:
    found, expected = _recorded("mixed-sizes-ddp")
    machine = _machine(found)
    assert machine.device.index == 1
    assert machine.device.free_bytes == expected["two_rank_budget_mib"] * MIB
    assert "device 1 (B 11) has 11 164 MiB free" in _said(found)
    assert "the smallest decides" in _said(found)


def test_bytes_of_an_old_binding_become_text() -> None:
    found, expected = _recorded("old-binding-bytes")
    (device,) = found.devices
    assert device.name == expected["name"]
    assert device.driver == "600.00"
    assert "b'" not in repr(found)


def test_a_lost_device_does_not_end_the_list() -> None:
    found, expected = _recorded("one-lost")
    assert len(found.devices) == expected["usable"]
    assert found.devices[0].index == 0
    assert "Device 1 cannot be used: it is lost" in _said(found)


def test_a_lost_device_that_torch_still_counts_is_left_out() -> None:
    scene = {
        "devices": [_card(1), {**_card(2), "memory": {"error": "GpuIsLost"}}],
        "cuda_order": [],
    }
    torch = TorchView(
        devices=tuple(
            TorchDevice(kind="cuda", index=i, name="A", uuid=_card(i + 1)["uuid"]) for i in range(2)
        )
    )
    found = _found(scene, torch)
    assert [device.index for device in found.devices] == [0]
    assert "Device 1 cannot be used: it is lost" in _said(found)


def test_an_empty_variable_hides_the_card() -> None:
    found, expected = _recorded("visible-empty")
    assert expected["visible"] == 0
    (device,) = found.devices
    assert (device.kind, device.name) == ("cpu", "Test CPU")
    assert (device.total_bytes, device.free_bytes) == (HOST.total_bytes, HOST.available_bytes)
    assert "it hides every device" in _said(found)
    assert "torch does not use" not in _said(found)


def test_entries_after_an_invalid_one_are_ignored() -> None:
    found, expected = _recorded("visible-minus-one")
    assert len(found.devices) == expected["visible"]
    assert "'-1' is no device, and the entries after it (1) are ignored" in _said(found)


def test_torch_numbers_the_visible_device() -> None:
    found, expected = _recorded("visible-one-of-three")
    (device,) = found.devices
    assert device.index == 0
    assert device.total_bytes == expected["cuda0_total_mib"] * MIB
    assert device.nvml_index == expected["cuda0_nvml_index"]
    assert device.name == "B"


def _card(number: int, *, name: str = "A", total_mib: int = 8192) -> dict[str, Any]:
    return {
        "uuid": f"GPU-0000000{number}",
        "name": name,
        "memory": {"total": total_mib, "free": total_mib - 50, "used": 50},
        "procs": [],
    }


def _seen(index: int = 0, **changes: Any) -> TorchDevice:
    values: dict[str, Any] = {
        "kind": "cuda",
        "index": index,
        "name": "A",
        "uuid": f"0000000{index + 1}",
        "total_bytes": 8192 * MIB,
        "free_bytes": 7800 * MIB,
        "memory_from": BY_TORCH,
    }
    return TorchDevice(**{**values, **changes})


def _machine(found: Found) -> Machine:
    host = Host(
        name="h",
        processor="p",
        num_cores=1.0,
        total_bytes=1,
        available_bytes=1,
        limit_from="host",
        platform="",
        num_threads=1,
    )
    return Machine(host=host, devices=found.devices, findings=found.findings)


def test_free_memory_is_from_before_the_context() -> None:
    (device,) = _found({"devices": [_card(1)]}, TorchView(devices=(_seen(),))).devices
    assert (device.free_bytes, device.memory_from) == (8142 * MIB, FROM_NVML)


def test_a_share_of_the_device_is_torchs_to_tell() -> None:
    torch = TorchView(devices=(_seen(total_bytes=4096 * MIB, free_bytes=4000 * MIB),))
    (device,) = _found({"devices": [_card(1)]}, torch).devices
    assert (device.total_bytes, device.free_bytes) == (4096 * MIB, 4000 * MIB)
    assert device.memory_from == BY_TORCH


def test_an_integrated_device_has_the_hosts_memory() -> None:
    torch = TorchView(devices=(_seen(total_bytes=60000 * MIB, is_integrated=True),))
    card = _card(1, total_mib=60000)
    (device,) = _found({"devices": [card]}, torch).devices
    assert (device.total_bytes, device.free_bytes) == (60000 * MIB, HOST.available_bytes)
    assert device.memory_from == FROM_HOST


def test_unsupported_memory_falls_back_to_torch() -> None:
    card = {**_card(1), "memory": {"error": "NotSupported"}}
    (device,) = _found({"devices": [card]}, TorchView(devices=(_seen(),))).devices
    assert (device.total_bytes, device.memory_from) == (8192 * MIB, BY_TORCH)


def test_a_total_of_zero_is_no_reading() -> None:
    card = {**_card(1), "memory": {"total": 0, "free": 0, "used": 0}}
    (device,) = _found({"devices": [card]}, TorchView(devices=(_seen(),))).devices
    assert (device.total_bytes, device.memory_from) == (8192 * MIB, BY_TORCH)


def test_a_device_without_any_memory_reading_is_left_out_and_said() -> None:
    card = {**_card(1), "memory": {"error": "NotSupported"}}
    torch = TorchView(devices=(_seen(total_bytes=None, free_bytes=None),))
    found = _found({"devices": [card]}, torch)
    assert [device.kind for device in found.devices] == ["cpu"]
    assert "Nobody tells the memory of cuda:0 (A)" in _said(found)


def test_a_torch_without_cuda_on_a_machine_with_a_card() -> None:
    found = _found({"devices": [_card(1)]}, TorchView(has_cuda=False))
    assert [device.kind for device in found.devices] == ["cpu"]
    assert "torch does not use the device that is there: A" in _said(found)
    assert "Install a torch build with CUDA" in _said(found)


def test_no_driver_and_no_device_is_a_plain_remark() -> None:
    found = _found({"devices": [], "init_error": "LibraryNotFound"}, TorchView())
    (finding,) = found.findings
    assert not finding.is_problem
    assert "no NVIDIA driver library is installed" in finding.cause


def test_a_process_of_unknown_size_is_named() -> None:
    card = {**_card(1), "procs": [{"pid": 7, "mib": None}, {"pid": 8, "mib": 100}]}
    found = _found({"devices": [card]}, TorchView(devices=(_seen(),)))
    assert [p.used_bytes for p in found.devices[0].processes] == [None, 100 * MIB]
    assert "2 other processes hold" in _said(found)
    assert "(process 7, 8)" in _said(found)


def test_a_small_idle_process_is_listed_but_not_complained_of() -> None:
    card = {**_card(1), "procs": [{"pid": 7, "mib": 20}], "util": 0}
    found = _found({"devices": [card]}, TorchView(devices=(_seen(),)))
    assert len(found.devices[0].processes) == 1
    assert found.findings == ()


DIVIDED = {
    **_card(1, name="Big", total_mib=81920),
    "mig_mode": 1,
    "mig": [
        None,
        {"uuid": "MIG-aaaa", "name": "Big 3g", "memory": {"total": 40000, "free": 39000}},
        {"uuid": "MIG-bbbb", "name": "Big 1g", "memory": {"total": 10000, "free": 9900}},
    ],
}


@pytest.mark.parametrize("uuid", ["bbbb", "MIG-bbbb"])
def test_an_instance_has_its_own_memory_and_not_its_parents(uuid: str) -> None:
    torch = TorchView(devices=(_seen(uuid=uuid, name="Big 1g", total_bytes=10000 * MIB),))
    scene = {"devices": [DIVIDED], "env": {"CUDA_VISIBLE_DEVICES": "MIG-bbbb"}}
    (device,) = _found(scene, torch).devices
    assert device.total_bytes == 10000 * MIB
    assert device.free_bytes == 9900 * MIB
    assert (device.mig, device.nvml_index, device.name) == (True, 0, "Big 1g")


def test_figures_of_a_divided_parent_are_not_taken() -> None:
    # torch may report the parent's UUID for an instance.
    torch = TorchView(devices=(_seen(total_bytes=10000 * MIB, free_bytes=9000 * MIB),))
    (device,) = _found({"devices": [DIVIDED]}, torch).devices
    assert (device.total_bytes, device.free_bytes) == (10000 * MIB, 9000 * MIB)
    assert (device.memory_from, device.mig) == (BY_TORCH, True)


def test_without_uuids_equal_cards_are_matched_by_order() -> None:
    scene = {"devices": [_card(1), _card(2)], "env": {"CUDA_VISIBLE_DEVICES": "1"}}
    torch = TorchView(devices=(_seen(uuid=None),))
    (device,) = _found(scene, torch).devices
    assert (device.nvml_index, device.memory_from) == (1, FROM_NVML)


def test_without_uuids_different_cards_are_not_guessed() -> None:
    cards = [_card(1), _card(2, name="B", total_mib=16384)]
    torch = TorchView(devices=(_seen(0, uuid=None), _seen(1, uuid=None, name="B")))
    first, second = _found({"devices": cards}, torch).devices
    assert (first.nvml_index, second.nvml_index) == (None, None)
    assert first.memory_from == BY_TORCH
    ordered = {"devices": cards, "env": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}}
    assert [device.nvml_index for device in _found(ordered, torch).devices] == [0, 1]


def test_another_kind_of_device_is_torchs_alone() -> None:
    torch = TorchView(devices=(_seen(kind="xpu", uuid=None, memory_from="torch.xpu.mem_get_info"),))
    (device,) = _found({"devices": [_card(1)]}, torch).devices
    assert (device.kind, device.nvml_index) == ("xpu", None)
    assert device.memory_from == "torch.xpu.mem_get_info"


def test_a_refused_allocation_decides_over_what_is_called_free() -> None:
    common: dict[str, Any] = {"kind": "cuda", "name": "A", "total_bytes": 100, "memory_from": "x"}
    refused = Device(
        index=0, free_bytes=90, allocatable_bytes=40, allocation_refused=True, **common
    )
    capped = Device(index=1, free_bytes=80, allocatable_bytes=10, **common)
    assert (refused.usable_bytes, capped.usable_bytes) == (40, 80)
    assert _machine(Found(devices=(refused, capped), findings=())).device is refused


def test_the_view_assumed_without_torch() -> None:
    lost = {**_card(2), "lost": True}
    view = assumed(look(scene_binding({"devices": [_card(1), lost, _card(3)]})), {})
    assert [(device.index, device.uuid) for device in view.devices] == [
        (0, "GPU-00000001"),
        (1, "GPU-00000003"),
    ]
