"""The probe on real ranks: what it measures, and what it says of ranks that hang or die."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from dataclasses import replace

import psutil
import pytest

from probes.collectives import sizes
from probes.errors import ProbeError
from probes.launch import Ranks
from probes.links import check, measure
from probes.machine import Device, machine_adapter
from tests.testing import groups, runs

KIB = 1024
MACHINE = runs.machine()


def ranks_below(process: psutil.Process) -> dict[int, psutil.Process]:
    """The ranks among what a process started."""
    found = {}
    for child in process.children(recursive=True):
        if "probes.collectives" in child.cmdline() and "-u" in child.cmdline():
            found[int(child.environ()["RANK"])] = child
    return found


class Meddler:
    """Does something to the last rank as soon as a step begins."""

    def __init__(self, step: str, act: Callable[[psutil.Process], None]) -> None:
        self._step = step
        self._act = act
        self.steps: list[str] = []
        self.ranks: dict[int, psutil.Process] = {}

    def __call__(self, step: str) -> None:
        self.steps.append(step)
        if step == self._step:
            self.ranks = ranks_below(psutil.Process())
            self._act(self.ranks[max(self.ranks)])


def test_message_sizes_grow_to_the_payload() -> None:
    assert sizes(4 * KIB**2) == [KIB * 4**power for power in range(7)]
    assert sizes(3000) == [1024, 3000]
    assert sizes(100) == [100]


def test_three_ranks_are_timed_in_every_way_until_one_hangs() -> None:
    last = "messages between ranks 1 and 2"
    meddler = Meddler(last, lambda rank: rank.send_signal(signal.SIGSTOP))
    link = measure(
        Ranks(num_processes=3),
        MACHINE,
        # So large that the last step takes longer than its being heard of.
        payload_bytes=100 * KIB,
        time_limit_s=5,
        call_limit_s=3,
        on_step=meddler,
    )
    assert (link.backend, link.device_kind, link.num_ranks) == ("gloo", "cpu", 3)
    assert link.threads_of_rank == 1
    assert [one.num_bytes for one in link.sizes("all-reduce")] == sizes(100 * KIB)
    assert [one.num_bytes for one in link.sizes("broadcast")] == sizes(100 * KIB)
    # Whole numbers of three ranks each.
    assert [one.num_bytes for one in link.sizes("all-gather")] == [
        size // 12 * 12 for size in sizes(100 * KIB)
    ]
    for one in link.exchanges:
        assert len(one.time.samples) >= 3
        assert min(one.time.samples) <= one.time.value <= max(one.time.samples)
        assert one.time.unit == "s"
        assert 0 <= one.slowest_rank < 3
    assert link.barrier_s is not None
    assert 0 < link.barrier_s < 5
    assert [pair.ranks for pair in link.pairs][:2] == [(0, 1), (0, 2)]
    assert all(0 < pair.latency_s < 1 and pair.bytes_per_s > 0 for pair in link.pairs)
    assert link.interface is not None
    assert link.interface.name == next(n for _, n in socket.if_nameindex() if n.startswith("lo"))
    assert set(meddler.steps) >= {"barrier", "all-reduce of 64 KiB", last}
    hung, shared = link.findings
    assert hung.cause.startswith(f"A collective hung: {last} did not end within 3 s (")
    assert hung.remedy is not None
    assert "GLOO_SOCKET_IFNAME" in hung.remedy
    assert shared.cause == "3 ranks with 1 thread each share 2 cores."
    assert groups.are_gone([*meddler.ranks.values()])
    machine = replace(MACHINE, links=(link,))
    adapter = machine_adapter()
    assert adapter.validate_json(adapter.dump_json(machine)) == machine


def test_a_killed_rank_is_a_finding() -> None:
    meddler = Meddler("all-reduce of 1 KiB", lambda rank: rank.kill())
    link = measure(Ranks(num_processes=2), MACHINE, on_step=meddler)
    (finding,) = link.findings
    assert finding.cause.startswith("The measurement broke off at ")
    assert finding.cause.endswith(": Rank 1 was ended by SIGKILL.")
    assert groups.are_gone([*meddler.ranks.values()])


def test_more_processes_than_devices_are_refused() -> None:
    device = Device(kind="cuda", index=0, name="a", total_bytes=1, free_bytes=1, memory_from="NVML")
    machine = replace(MACHINE, devices=(device, replace(device, index=1)))
    check(Ranks(num_processes=2), machine)
    with pytest.raises(ProbeError, match="3 processes on a machine with 2 cuda devices") as raised:
        measure(Ranks(num_processes=3), machine)
    assert raised.value.is_usage
    assert raised.value.remedy.startswith("Take at most 2 processes")


def test_an_interface_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none9")
    with pytest.raises(ProbeError, match="names 'none9', and there is no such interface") as raised:
        measure(Ranks(num_processes=2), MACHINE)
    assert "There are lo" in raised.value.remedy
