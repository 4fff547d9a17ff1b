from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from probes import known, store
from probes.allocation import READING
from probes.child import ChildResult
from probes.devices import nvml
from probes.devices.nvml import NvmlDevice, NvmlView
from probes.devices.torch_devices import TorchDevice, TorchView
from probes.known import known_machine, refreshed, run_in_child
from probes.machine import Device, Finding, Machine, Reading, machine_adapter
from probes.present import present
from probes.survey import SurveyProgress

GIB = 2**30
SPEED = Reading(name="matmul float32", unit="flop_per_s", value=5.0)
LASTING = Finding(cause="It only pretends.", lasts=True)


def test_a_survey_in_a_child_then_its_speeds_without_torch(tmp_path: Path) -> None:
    """The whole way, in a process that must never load torch."""
    code = (
        "import json, sys, time\n"
        "from probes import known_machine, machine_adapter\n"
        "for i in range(2):\n"
        "    start, steps = time.monotonic(), []\n"
        "    machine = known_machine(on_progress=lambda p: steps.append(p.probe))\n"
        "    print(json.dumps([time.monotonic() - start, steps,"
        " machine_adapter().dump_python(machine, mode='json')]))\n"
        "print(json.dumps('torch' in sys.modules))\n"
    )
    environment = {**os.environ, "AUTOTUNE_CACHE_DIR": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout
    (_, steps, first), (_, no_steps, second), has_torch = map(json.loads, said.splitlines())
    measured = machine_adapter().validate_python(first)
    again = machine_adapter().validate_python(second)
    assert has_torch is False
    assert steps[0] == "devices and memory"
    assert steps[-1] == ("arithmetic rate" if measured.device.kind == "cpu" else "context")
    assert (measured.from_store, again.from_store) == (False, True)
    assert again.reading("matmul float32") == measured.reading("matmul float32")
    assert again.digest == measured.digest
    assert again.reading(READING) is not None or again.device.kind != "cpu"
    if again.device.kind == "cpu":
        assert no_steps == []


def _kept(view: NvmlView, torch: TorchView, directory: Path, **changes: Any) -> Machine:
    machine = present(view, torch, environment={})
    machine = replace(
        machine, readings=(SPEED,), findings=(*machine.findings, LASTING), probed_unix_s=3.0
    )
    machine = replace(machine, **changes)
    assert store.save(machine, directory) is None
    return machine


NO_NVML = NvmlView()


def test_the_cpus_speeds_are_reused_and_its_memory_read_anew(tmp_path: Path) -> None:
    kept = _kept(NO_NVML, TorchView(num_threads=3), tmp_path)
    stale = replace(
        kept,
        host=replace(kept.host, available_bytes=1, total_bytes=1),
        devices=(replace(kept.devices[0], free_bytes=1, memory_from="control group /old"),),
    )
    store.save(stale, tmp_path)
    machine = refreshed(NO_NVML, tmp_path, environment={})
    assert machine is not None
    assert machine.from_store
    assert machine.reading("matmul float32") == SPEED
    assert machine.host.num_threads == 3
    assert machine.host.available_bytes > 2**20
    assert machine.device.free_bytes > 2**20
    assert machine.device.allocatable_bytes is not None
    assert LASTING in machine.findings


def test_nothing_kept_or_another_environment_needs_a_survey(tmp_path: Path) -> None:
    assert refreshed(NO_NVML, tmp_path, environment={}) is None
    _kept(NO_NVML, TorchView(), tmp_path)
    assert refreshed(NO_NVML, tmp_path, environment={}) is not None
    assert refreshed(NO_NVML, tmp_path, environment={"OMP_NUM_THREADS": "1"}) is None
    assert refreshed(NO_NVML, None, environment={}) is None


def _card(free_gib: int, *, uuid: str = "GPU-1") -> NvmlView:
    device = NvmlDevice(
        index=0, uuid=uuid, name="A", total_bytes=8 * GIB, free_bytes=free_gib * GIB
    )
    return NvmlView(driver="600.00", devices=(device,))


def _seen(**changes: Any) -> TorchView:
    values: dict[str, Any] = {"kind": "cuda", "index": 0, "name": "A", "uuid": "1"}
    return TorchView(devices=(TorchDevice(**{**values, **changes}),))


def test_a_card_that_nvml_tells_of_is_read_anew_without_torch(tmp_path: Path) -> None:
    kept = _kept(_card(7), _seen(), tmp_path)
    assert kept.device.free_bytes == 7 * GIB
    machine = refreshed(_card(2), tmp_path, environment={})
    assert machine is not None
    assert machine.device.free_bytes == 2 * GIB
    assert machine.device.uuid == "GPU-1"
    assert machine.device.allocatable_bytes is None


@pytest.mark.parametrize(
    "torch",
    [
        _seen(kind="xpu", total_bytes=8 * GIB, free_bytes=GIB, memory_from="torch"),
        _seen(total_bytes=4 * GIB, free_bytes=GIB, memory_from="torch"),
        TorchView(has_cuda=False),
    ],
    ids=["another kind", "a share of the device", "torch did not see the card"],
)
def test_where_only_torch_can_tell_it_is_asked(tmp_path: Path, torch: TorchView) -> None:
    _kept(_card(7), torch, tmp_path)
    assert refreshed(_card(7), tmp_path, environment={}) is None


def test_a_device_that_refused_memory_is_asked_again(tmp_path: Path) -> None:
    kept = _kept(_card(7), _seen(), tmp_path)
    refused = replace(kept.devices[0], allocatable_bytes=GIB, allocation_refused=True)
    store.save(replace(kept, devices=(refused,)), tmp_path)
    assert refreshed(_card(7), tmp_path, environment={}) is None


def test_another_card_is_another_machine(tmp_path: Path) -> None:
    _kept(_card(7), _seen(), tmp_path)
    assert refreshed(_card(7, uuid="GPU-2"), tmp_path, environment={}) is None


def test_a_card_that_nvml_no_longer_answers_for_needs_torch(tmp_path: Path) -> None:
    kept = _kept(_card(7), _seen(), tmp_path)
    gone = replace(_card(7).devices[0], free_bytes=None)
    assert kept.digest
    assert refreshed(NvmlView(driver="600.00", devices=(gone,)), tmp_path, environment={}) is None


@pytest.mark.parametrize(
    ("result", "how"),
    [
        (
            ChildResult(lines=(), returncode=-11, is_timed_out=False, last_error=""),
            "was ended by signal 11.",
        ),
        (
            ChildResult(
                lines=('{"machine": {}}', '{"odd": 1}', "[]", "noise"),
                returncode=1,
                is_timed_out=False,
                last_error="ImportError: libcudart.so.",
            ),
            "ended with code 1: ImportError: libcudart.so.",
        ),
        (
            ChildResult(lines=(), returncode=-9, is_timed_out=True, last_error=""),
            "did not end within 35 s.",
        ),
    ],
)
def test_a_child_that_breaks_leaves_what_can_be_read_without_torch(
    monkeypatch: pytest.MonkeyPatch, result: ChildResult, how: str
) -> None:
    def run(
        module: str, arguments: list[str], *, time_limit_s: float, on_line: Any, on_wait: Any
    ) -> ChildResult:
        assert (module, arguments, time_limit_s) == (
            "probes.survey",
            ["--time-limit-s", "5", "--fresh"],
            35,
        )
        for line in result.lines:
            on_line(line)
        return result

    monkeypatch.setattr(known, "run_module", run)
    monkeypatch.setattr(nvml, "look", lambda: _card(6))
    machine = run_in_child(5, fresh=True)
    assert machine.device.free_bytes == 6 * GIB
    assert machine.host.available_bytes > 0
    assert machine.readings == ()
    finding = machine.findings[-1]
    assert finding.cause == f"The survey's process {how}"
    assert abs(machine.probed_unix_s - time.time()) < 60


def test_an_error_of_the_listener_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, on_line: Any, **__: Any) -> ChildResult:
        on_line(json.dumps({"progress": {"probe": "copies", "number": 4}}))
        raise AssertionError("the listener's error was swallowed")

    def listen(progress: SurveyProgress) -> None:
        assert (progress.probe, progress.number, progress.num_probes) == ("copies", 4, 6)
        raise ValueError("the listener broke")

    monkeypatch.setattr(known, "run_module", run)
    with pytest.raises(ValueError, match="the listener broke"):
        run_in_child(5, on_progress=listen)


def test_fresh_does_not_look_into_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(
        kind="cpu", index=0, name="CPU", total_bytes=1, free_bytes=1, memory_from="host"
    )
    surveyed = replace(present(NO_NVML, TorchView()), devices=(device,))
    asked: list[bool] = []

    def survey(time_limit_s: float, *, fresh: bool, on_progress: Any, on_wait: Any) -> Machine:
        asked.append(fresh)
        return surveyed

    monkeypatch.setattr(known, "run_in_child", survey)
    monkeypatch.setattr(known, "refreshed", lambda *_, **__: pytest.fail("the store was read"))
    assert known_machine(fresh=True) is surveyed
    assert asked == [True]
