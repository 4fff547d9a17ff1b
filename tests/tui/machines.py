"""Machines with readings and links, as journals and children tell them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import TypeAdapter

from autotune.events import Document, Event, MachineProbed, ProbeStarted, WorkloadLoaded
from probes.link import Exchange, Interface, Link, Pair
from probes.machine import Device, DeviceProcess, Finding, Machine, Reading, machine_adapter
from tests.testing import runs

GIB = runs.GIB
READINGS = (
    Reading(
        name="allocation tried",
        unit="bytes",
        value=5.5 * GIB,
        samples=(5.5 * GIB,),
        note="allocated and touched on cpu:0 in a child process, of 6144 MiB said to be free: the "
        "try ended at its bound, so more may be had",
    ),
    Reading(
        name="memory bandwidth",
        unit="bytes_per_s",
        value=12.4e9,
        samples=(12.3e9, 12.4e9, 12.5e9),
        half_iqr=0.1e9,
        note="a copy of 128 MiB on cpu:0, both directions counted",
    ),
    Reading(
        name="matmul float32",
        unit="flop_per_s",
        value=98.0e9,
        samples=(97.0e9, 98.0e9, 99.0e9),
        half_iqr=0.4e9,
        note="2048 × 2048 matrices",
    ),
    Reading(
        name="matmul bfloat16",
        unit="flop_per_s",
        value=7.0e9,
        samples=(7.0e9, 7.0e9, 7.1e9),
        half_iqr=0.02e9,
        note="1024 × 1024 matrices",
    ),
)
FINDINGS = (
    Finding(
        cause="The device only pretends to have bfloat16: matrix products in it are 14 times "
        "slower than in float32.",
        remedy="Train in float32 on it.",
        is_problem=False,
    ),
    Finding(cause="Swap is in use: 512 MiB.", remedy="Close what is not needed.", is_problem=True),
)


def link(num_ranks: int = 4) -> Link:
    """A slow link between so many ranks, every two of them measured."""

    def exchange(num_bytes: int, seconds: float) -> Exchange:
        time = Reading(
            name="all-reduce",
            unit="s",
            value=seconds,
            samples=(seconds,) * 5,
            half_iqr=seconds / 50,
        )
        return Exchange(collective="all-reduce", num_bytes=num_bytes, time=time)

    return Link(
        backend="gloo",
        num_ranks=num_ranks,
        exchanges=tuple(
            exchange(size, 120e-6 + size / 1.1e9) for size in (1024, 65536, 2**20, 4 * 2**20)
        ),
        pairs=tuple(
            Pair(
                ranks=(one, other),
                latency_s=55e-6 * (1 + other - one),
                num_bytes=2**20,
                bytes_per_s=1.2e9 / (other - one),
            )
            for one in range(num_ranks)
            for other in range(one + 1, num_ranks)
        ),
        interface=Interface(name="lo", address="127.0.0.1"),
    )


def machine(*, num_ranks: int = 1, from_store: bool = False) -> Machine:
    """The small machine of `tests.testing.runs`, probed whole."""
    plain = runs.machine()
    device = plain.devices[0]
    return replace(
        plain,
        devices=(device,),
        readings=READINGS,
        findings=FINDINGS,
        links=(link(num_ranks),) if num_ranks > 1 else (),
        from_store=from_store,
    )


def accelerator() -> Machine:
    """A machine with a device that somebody else uses too."""
    device = Device(
        kind="cuda",
        index=0,
        name="Test accelerator",
        total_bytes=80 * GIB,
        free_bytes=70 * GIB,
        memory_from="NVML",
        driver="580.65",
        processes=(DeviceProcess(process=4121, used_bytes=6 * GIB // 10),),
        temperature_celsius=41.0,
        power_w=88.0,
        utilization_percent=3.0,
    )
    copy = Reading(
        name="copy host to device, pinned",
        unit="bytes_per_s",
        value=52.8e9,
        samples=(52.8e9, 52.9e9),
        half_iqr=0.5e9,
        note="64 MiB at a time",
    )
    return replace(machine(), devices=(device,), readings=(*READINGS, copy), findings=())


def document(found: Machine) -> Document:
    """The machine in its JSON form."""
    document: Document = machine_adapter().dump_python(found, mode="json")
    return document


def on(found: Machine, events: Sequence[Event]) -> list[Event]:
    """The same story on another machine, with a job whose tokens are known."""
    changed: list[Event] = []
    for event in events:
        if isinstance(event, MachineProbed):
            event = replace(event, machine=document(found), from_store=found.from_store)
        elif isinstance(event, WorkloadLoaded):
            event = replace(event, facts={**event.facts, "tokens_median": 64})
        changed.append(event)
    return changed


def probing(number: int = 4) -> ProbeStarted:
    """The machine is being probed; the bandwidth is known already."""
    reading = TypeAdapter(Reading).dump_python(READINGS[1], mode="json")
    return ProbeStarted(probe="arithmetic rate", number=number, num_probes=5, readings=(reading,))
