"""Bandwidth, copies and arithmetic rate, on the CPU of this machine and on stand-ins."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from probes import copies, matmul
from probes.machine import Device, Reading

MIB = 2**20
CPU = Device(
    kind="cpu",
    index=0,
    name="CPU",
    total_bytes=2**30,
    free_bytes=512 * MIB,
    memory_from="host",
)


def _rate(value: float) -> Reading:
    return Reading(name="matmul", unit="flop_per_s", value=value)


def test_memory_bandwidth_of_this_cpu() -> None:
    reading = copies.memory_bandwidth(torch, CPU, time_limit_s=0.1)
    assert (reading.name, reading.unit) == ("memory bandwidth", "bytes_per_s")
    assert 1e8 < reading.value < 1e13
    assert len(reading.samples) >= 3
    assert min(reading.samples) <= reading.value <= max(reading.samples)
    assert reading.note is not None
    # A sixteenth of what is free, where that is little.
    assert reading.note.startswith("a copy of 32 MiB on cpu:0")


def test_a_cpu_has_no_copies_to_itself() -> None:
    assert list(copies.host_copies(torch, CPU)) == []
    assert copies.synchronizer(torch, CPU) is None


def test_copies_go_both_ways_from_both_kinds_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # "meta" stands in for the device: its tensors are copied to in no time, so only what is
    # asked for is checked.
    copied: list[tuple[str, str]] = []

    class Tensor:
        def __init__(self, place: str) -> None:
            self.place = place

        def pin_memory(self) -> Tensor:
            return Tensor("pinned")

        def copy_(self, source: Tensor, *, non_blocking: bool) -> None:
            assert non_blocking
            copied.append((source.place, self.place))

    fake = ModuleType("torch")
    values: dict[str, Any] = {
        "uint8": "uint8",
        "zeros": lambda *_, device, **__: Tensor(device),
        "full": lambda *_, **__: Tensor("pageable"),
        "accelerator": SimpleNamespace(synchronize=lambda index: None),
    }
    for name, value in values.items():
        setattr(fake, name, value)
    device = Device(
        kind="cuda",
        index=0,
        name="A",
        total_bytes=2**34,
        free_bytes=2**33,
        memory_from="NVML",
    )
    readings = list(copies.host_copies(fake, device))
    assert [reading.name for reading in readings] == [
        "copy host to device, pinned",
        "copy device to host, pinned",
        "copy host to device, pageable",
        "copy device to host, pageable",
    ]
    assert list(dict.fromkeys(copied)) == [
        ("pinned", "cuda:0"),
        ("cuda:0", "pinned"),
        ("pageable", "cuda:0"),
        ("cuda:0", "pageable"),
    ]


def test_float32_rate_of_this_cpu() -> None:
    before = torch.get_float32_matmul_precision()
    state = torch.random.get_rng_state()
    reading = matmul.rate(torch, CPU, "float32", time_limit_s=0.1)
    assert (reading.name, reading.unit) == ("matmul float32", "flop_per_s")
    assert 1e8 < reading.value < 1e15
    assert reading.note is not None
    assert "matrices" in reading.note
    assert torch.get_float32_matmul_precision() == before
    assert torch.equal(torch.random.get_rng_state(), state)


def test_precision_is_put_back_after_an_error() -> None:
    before = torch.get_float32_matmul_precision()
    with pytest.raises(AttributeError):
        matmul.rate(torch, CPU, "float12", tf32=True)
    assert torch.get_float32_matmul_precision() == before


def test_matrices_stay_small_where_memory_is_short() -> None:
    short = Device(
        kind="cpu", index=0, name="CPU", total_bytes=2**24, free_bytes=2**20, memory_from="host"
    )
    reading = matmul.rate(torch, short, "float32", time_limit_s=0.05)
    assert reading.note is not None
    assert reading.note.startswith("256 × 256")


def test_a_dtype_by_detours_is_said_to_be_pretence() -> None:
    finding = matmul.pretended("bfloat16", _rate(2.0), _rate(60.0))
    assert finding is not None
    assert "only pretends to have bfloat16" in finding.cause
    assert "30 times slower" in finding.cause
    assert finding.lasts
    assert not finding.is_problem
    assert matmul.pretended("bfloat16", _rate(60.0), _rate(60.0)) is None


def test_a_dtype_that_does_not_run_is_said() -> None:
    finding = matmul.missing("float16", RuntimeError('"addmm" not implemented for Half\nmore'))
    assert finding.cause.endswith('does not compute in float16: "addmm" not implemented for Half.')
    assert finding.lasts


def test_tf32_only_where_tensor_cores_have_it() -> None:
    def fake(capability: tuple[int, int], hip: str | None = None) -> ModuleType:
        module = ModuleType("torch")
        cuda = SimpleNamespace(get_device_capability=lambda index: capability)
        module.cuda = cuda  # type: ignore[attr-defined]
        module.version = SimpleNamespace(hip=hip)  # type: ignore[attr-defined]
        return module

    cuda = Device(kind="cuda", index=0, name="A", total_bytes=1, free_bytes=1, memory_from="NVML")
    assert matmul.has_tf32(fake((8, 0)), cuda)
    assert not matmul.has_tf32(fake((7, 5)), cuda)
    assert not matmul.has_tf32(fake((9, 4), hip="6.2"), cuda)
    assert not matmul.has_tf32(fake((8, 0)), CPU)
