"""The probe on real ranks: what it measures, and what it says of ranks that hang or die."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

import psutil
import pytest

from probes.collectives import findings
from probes.collectives.probe import check, measure
from probes.collectives.said import Said
from probes.collectives.steps import sizes
from probes.errors import ProbeError
from probes.link import Exchange
from probes.machine import Device, Reading
from probes.ranks.launch import Ranks
from tests.testing import groups, runs

KIB = 1024
MACHINE = runs.machine()


def ranks_below(process: psutil.Process) -> dict[int, psutil.Process]:
    """The ranks among what a process started."""
    found = {}
    for child in process.children(recursive=True):
        if "probes.collectives.rank" in child.cmdline() and "-u" in child.cmdline():
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


def test_a_hung_collective_is_a_finding() -> None:
    meddler = Meddler("barrier", lambda rank: rank.send_signal(signal.SIGSTOP))
    link = measure(Ranks(num_processes=2), MACHINE, call_limit_s=3, on_step=meddler)
    assert (link.backend, link.num_ranks, link.threads_of_rank) == ("gloo", 2, 1)
    assert not link.sizes("all-gather")
    (hung,) = link.findings
    assert hung.cause.startswith(f"A collective hung: {meddler.steps[-1]} did not end within 3 s (")
    assert hung.remedy is not None
    assert "GLOO_SOCKET_IFNAME" in hung.remedy
    assert groups.are_gone([*meddler.ranks.values()])


def test_a_killed_rank_is_a_finding() -> None:
    meddler = Meddler("all-reduce of 1 KiB", lambda rank: rank.kill())
    link = measure(Ranks(num_processes=2), MACHINE, on_step=meddler)
    (finding,) = link.findings
    assert finding.cause.startswith("The measurement broke off at ")
    assert ": Rank 1 was ended by SIGKILL" in finding.cause
    assert groups.are_gone([*meddler.ranks.values()])


def test_large_messages_without_time_and_unsteady_ones_are_said() -> None:
    steady = Reading(name="all-reduce", unit="s", value=0.1, samples=(0.1,) * 3, half_iqr=0.009)
    shaky = replace(steady, half_iqr=0.02)
    exchanges = [
        Exchange(collective="all-reduce", num_bytes=KIB, time=shaky),
        Exchange(collective="all-reduce", num_bytes=64 * KIB, time=steady),
    ]
    assert findings.unsteady(exchanges) == []
    (finding,) = findings.unsteady(exchanges[:1])
    assert finding.cause.startswith("The times of all-reduce of 1 KiB vary by ± 20 %")
    (finding,) = findings.left_out([Said(left_out=("broadcast", 4 * KIB**2)), Said(step="x")])
    assert finding.cause == "There was no time for broadcast of 4 MiB."
    assert not finding.is_problem


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
    assert "lo; unset GLOO_SOCKET_IFNAME" in raised.value.remedy
