from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from probes import allocation, climbing
from probes.allocation import Attempt, attempt, with_attempt
from probes.child import ChildResult, run_module
from probes.climbing import climb
from probes.machine import Device, DeviceProcess

MIB = 2**20
GIB = 2**30


def _device(**changes: Any) -> Device:
    values: dict[str, Any] = {
        "kind": "cpu",
        "index": 0,
        "name": "CPU",
        "total_bytes": 8 * GIB,
        "free_bytes": 4 * GIB,
        "memory_from": "host",
    }
    return Device(**{**values, **changes})


def _climb(
    take: Callable[[int], bool], may_take: Callable[[int], bool] = lambda _: True
) -> tuple[int, str, list[int]]:
    steps: list[int] = []
    reached, end = climb(
        take,
        bound_bytes=100,
        step_bytes=40,
        smallest_step_bytes=5,
        may_take=may_take,
        on_step=steps.append,
    )
    return reached, end, steps


def test_a_climb_ends_at_its_bound() -> None:
    assert _climb(lambda _: True) == (100, "bound", [40, 80, 100])


def test_a_refused_step_is_halved_until_it_is_small() -> None:
    taken: list[int] = []

    def take(num_bytes: int) -> bool:
        if sum(taken) + num_bytes > 57:
            return False
        taken.append(num_bytes)
        return True

    reached, end, steps = _climb(take)
    assert (reached, end) == (55, "refused")
    assert steps == [40, 50, 55]


def test_a_climb_stops_before_the_machine_suffers() -> None:
    left = 70

    def may_take(num_bytes: int) -> bool:
        return num_bytes <= left - sum(taken)

    taken: list[int] = []

    def take(num_bytes: int) -> bool:
        taken.append(num_bytes)
        return True

    reached, end, _ = _climb(take, may_take)
    assert (reached, end) == (40, "stopped")


def test_the_host_is_really_tried_within_its_bound() -> None:
    tried = attempt(_device(free_bytes=400 * MIB), time_limit_s=30)
    assert tried == Attempt(reached_bytes=40 * MIB, bound_bytes=40 * MIB, end="bound")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_limit_that_nobody_reports_is_found() -> None:
    # The parent is limited, says 4 GiB all the same, and its child inherits the limit.
    code_result = run_module("tests.testing.limited_attempt", [str(150 * MIB)], time_limit_s=60)
    told = json.loads(code_result.lines[0])
    assert told["end"] == "refused"
    assert 64 * MIB <= told["reached_bytes"] < 150 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="the fence is Linux's")
def test_the_child_fences_itself() -> None:
    result = run_module("tests.testing.fenced_child", [str(64 * MIB)], time_limit_s=30)
    assert result.lines == ("refused", "1000")


def test_as_little_as_on_the_host_beside_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(module: str, arguments: list[str], **_: Any) -> ChildResult:
        asked.append(arguments)
        return ChildResult(lines=(), returncode=0, is_timed_out=False, last_error="")

    monkeypatch.setattr(allocation, "run_module", run)
    neighbour = (DeviceProcess(process=1, used_bytes=GIB),)
    attempt(_device(kind="cuda", processes=neighbour), time_limit_s=30)
    attempt(_device(kind="cuda", index=3), time_limit_s=30)
    attempt(_device(kind="cuda", is_integrated=True), time_limit_s=30)
    assert [arguments[:2] for arguments in asked] == [
        ["cuda:0", str(256 * MIB)],
        ["cuda:3", str(4 * GIB)],
        ["host", str(256 * MIB)],
    ]


@pytest.mark.parametrize(
    ("returncode", "is_timed_out", "end"),
    [(0, False, "stopped"), (-9, False, "refused"), (137, False, "refused"), (-9, True, "stopped")],
)
def test_a_child_that_the_kernel_killed_was_refused_memory(
    monkeypatch: pytest.MonkeyPatch, returncode: int, is_timed_out: bool, end: str
) -> None:
    line = json.dumps({"reached_bytes": 5, "bound_bytes": 9, "end": "stopped"})
    result = ChildResult(
        lines=(line, "cut off {"),
        returncode=returncode,
        is_timed_out=is_timed_out,
        last_error="",
    )
    monkeypatch.setattr(allocation, "run_module", lambda *_, **__: result)
    tried = attempt(_device(), time_limit_s=30)
    assert tried is not None
    assert (tried.reached_bytes, tried.end) == (5, end)


def test_a_child_that_says_nothing_is_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    result = ChildResult(lines=(), returncode=1, is_timed_out=False, last_error="ImportError")
    monkeypatch.setattr(allocation, "run_module", lambda *_, **__: result)
    assert attempt(_device(), time_limit_s=30) is None


def test_a_bounded_try_says_so_and_limits_nothing() -> None:
    tried = Attempt(reached_bytes=256 * MIB, bound_bytes=256 * MIB, end="bound")
    device, reading, findings = with_attempt(_device(), tried)
    assert device.usable_bytes == 4 * GIB
    assert device.allocatable_bytes == 256 * MIB
    assert reading.value == 256 * MIB
    assert reading.note is not None
    assert "of 4 096 MiB said to be free" in reading.note
    assert "more may be had" in reading.note
    assert findings == []


def test_a_refused_try_limits_the_device_and_is_a_problem() -> None:
    tried = Attempt(reached_bytes=100 * MIB, bound_bytes=256 * MIB, end="refused")
    device, _, (finding,) = with_attempt(_device(), tried)
    assert device.usable_bytes == 100 * MIB
    assert finding.is_problem
    assert "says that 4 096 MiB are free" in finding.cause
    assert "more than 100 MiB was refused" in finding.cause


def test_on_a_device_the_context_counts_as_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1000 MiB the context takes 100, 256 are spared, and 600 is where the device refuses."""
    taken: list[int] = []

    class Block:
        def __init__(self, num_bytes: int) -> None:
            if sum(taken) + num_bytes > 500 * MIB:
                raise RuntimeError("out of memory")
            taken.append(num_bytes)

        def fill_(self, value: int) -> Block:
            return self

    fake = ModuleType("torch")
    values: dict[str, Any] = {
        "uint8": "uint8",
        "zeros": lambda *_, **__: object(),
        "empty": lambda num_bytes, **_: Block(num_bytes),
        "accelerator": SimpleNamespace(synchronize=lambda: None),
        "cuda": SimpleNamespace(mem_get_info=lambda index: (900 * MIB, 1000 * MIB)),
    }
    for name, value in values.items():
        setattr(fake, name, value)
    monkeypatch.setitem(sys.modules, "torch", fake)
    out = io.StringIO()
    climbing.main(["cuda:0", str(1000 * MIB), str(1000 * MIB), "60"], out)
    last = json.loads(out.getvalue().splitlines()[-1])
    assert last["bound_bytes"] == (1000 - 256) * MIB
    assert last["end"] == "refused"
    assert 560 * MIB <= last["reached_bytes"] <= 600 * MIB
