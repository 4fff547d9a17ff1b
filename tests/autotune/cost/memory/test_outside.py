"""What stands beside the tensors: each with its number, and where that comes from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.cost.memory import outside as layers
from autotune.cost.memory.devices import find
from autotune.cost.memory.outside import (
    Layer,
    Ranks,
    Target,
    averaging_bytes,
    buckets,
    outside,
    workspaces,
)
from autotune.runtime.averaging import BUCKET_BYTES
from probes.link import BUFFERS, Link
from probes.machine import Device, Host, Machine, Reading
from probes.reading import CONTEXT, WORKSPACES

MIB = 2**20
GIB = 2**30


def target(name: str = "RTX 4090", **changes: object) -> Target:
    known = find(name)
    made = Target(
        name=known.name,
        kind="cuda",
        architecture=known.architecture,
        total_bytes=known.total_bytes,
        total_from="data sheet",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def machine(*readings: Reading, links: tuple[Link, ...] = ()) -> Machine:
    device = Device(
        kind="cuda",
        index=0,
        name="NVIDIA GeForce RTX 4090",
        total_bytes=24 * GIB,
        free_bytes=24 * GIB,
        memory_from="NVML",
    )
    host = Host(
        name="node",
        processor="cpu",
        num_cores=8,
        total_bytes=64 * GIB,
        available_bytes=60 * GIB,
        limit_from="host",
        platform="Linux",
        num_threads=8,
    )
    return Machine(host=host, devices=(device,), readings=readings, links=links)


def reading(name: str, num_bytes: int) -> Reading:
    return Reading(name=name, unit="bytes", value=float(num_bytes))


@pytest.mark.parametrize(
    ("device", "sizes"),
    [
        ("T4", (2 * 8_519_680, 1 * MIB)),
        ("RTX 4090", (2 * 8_519_680, 4 * MIB)),
        ("H100 80GB", (2 * 32 * MIB, 32 * MIB)),
        ("B200", (2 * 8_519_680, 32 * MIB)),
        ("MI300X", (2 * 128 * MIB, 76 * MIB)),
        ("MI210", (2 * 32 * MIB, 76 * MIB)),
    ],
)
def test_workspaces_follow_the_architecture(device: str, sizes: tuple[int, ...]) -> None:
    found = workspaces(target(device))
    assert tuple(layer.num_bytes for layer in found) == sizes
    for layer in found:
        assert sum(layer.blocks) == layer.num_bytes
        assert (layer.basis, layer.place) == ("assumed", "allocator")
        assert layer.source


def test_of_an_architecture_that_nobody_told_the_largest_workspaces_are_taken() -> None:
    found = workspaces(target(architecture=None))
    assert sum(layer.num_bytes for layer in found) == 96 * MIB
    assert "not told" in found[0].source


def test_a_cpu_and_other_kinds_have_no_such_workspaces() -> None:
    assert workspaces(target(kind="cpu")) == ()
    assert workspaces(target(kind="mps")) == ()


def test_what_was_measured_on_the_machine_counts_before_what_is_assumed() -> None:
    link = Link(
        backend="nccl",
        num_ranks=2,
        device_kind="cuda",
        readings=(reading("barrier", 1), reading(BUFFERS, 300 * MIB)),
    )
    known = machine(reading(CONTEXT, 398 * MIB), reading(WORKSPACES, 17 * MIB), links=(link,))
    measured = target(machine=known)
    (kept,) = workspaces(measured)
    assert (kept.num_bytes, kept.basis, kept.blocks) == (
        17 * MIB,
        "measured on this machine",
        (17 * MIB,),
    )
    context, exchange = outside(measured, Ranks(world_size=2))
    assert (context.num_bytes, context.basis) == (398 * MIB, "measured on this machine")
    assert (exchange.num_bytes, exchange.basis) == (300 * MIB, "measured on this machine")
    # Four ranks were not measured.
    assert outside(measured, Ranks(world_size=4))[-1].basis == "assumed"


def test_the_context_is_assumed_for_a_device_that_is_not_here() -> None:
    (context,) = outside(target(), Ranks())
    assert (context.name, context.num_bytes, context.basis) == ("context", 500_000_000, "assumed")
    assert (context.place, context.blocks) == ("outside", ())


def test_the_driver_keeps_a_part_of_a_data_sheet() -> None:
    driver = outside(target(driver_bytes=layers.DRIVER_BYTES), Ranks())[1]
    assert (driver.name, driver.num_bytes, driver.basis) == ("driver", 512 * MIB, "assumed")


@pytest.mark.parametrize(
    ("device", "world_size", "num_bytes"),
    [
        ("A100 80GB", 2, 544_000_000),
        ("A100 80GB", 4, 688_000_000),
        ("A100 80GB", 8, 976_000_000),
        ("MI300X", 8, GIB),
    ],
)
def test_communication_is_assumed_by_the_number_of_ranks(
    device: str, world_size: int, num_bytes: int
) -> None:
    exchange = outside(target(device), Ranks(world_size=world_size))[-1]
    assert (exchange.name, exchange.num_bytes) == ("communication buffers", num_bytes)
    assert exchange.basis == "assumed"


def test_several_ranks_keep_their_gradients_in_buckets_too() -> None:
    assert buckets(Ranks(trained_bytes=60 * MIB)) == ()
    (layer,) = buckets(Ranks(world_size=2, trained_bytes=60 * MIB))
    assert (layer.num_bytes, layer.basis, layer.place) == (60 * MIB, "by rule", "allocator")
    assert layer.blocks == (25 * MIB, 25 * MIB, 10 * MIB)


def test_averaging_copies_one_bucket_at_a_time() -> None:
    assert layers.AVERAGING_BUCKET_BYTES == BUCKET_BYTES
    assert averaging_bytes(Ranks(world_size=2, trained_bytes=900 * MIB, averages=True)) == 64 * MIB
    assert averaging_bytes(Ranks(world_size=2, trained_bytes=9 * MIB, averages=True)) == 9 * MIB
    assert averaging_bytes(Ranks(world_size=2, trained_bytes=9 * MIB)) == 0
    assert averaging_bytes(Ranks(trained_bytes=9 * MIB, averages=True)) == 0


def test_on_a_cpu_the_process_is_what_stands_beside() -> None:
    (assumed,) = outside(target(kind="cpu"), Ranks(world_size=2))
    assert (assumed.name, assumed.basis) == ("process", "assumed")
    (known,) = outside(target(kind="cpu"), Ranks(), process_bytes=390 * MIB)
    assert (known.num_bytes, known.basis) == (390 * MIB, "measured on this machine")


def test_a_layer_is_told_in_public_words() -> None:
    layer = Layer(name="context", num_bytes=5, basis="assumed", source="a report", place="outside")
    assert layer.to_json() == {
        "name": "context",
        "bytes": 5,
        "basis": "assumed",
        "source": "a report",
        "place": "outside",
    }
