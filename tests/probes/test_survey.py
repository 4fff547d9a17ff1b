from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from probes import matmul, store
from probes import survey as module
from probes.allocation import READING
from probes.devices import nvml
from probes.machine import Device, Finding, Machine, Reading, machine_adapter
from probes.survey import PROBES, SurveyProgress, progress_adapter, survey, with_kept_speeds
from tests.probes.test_store import MACHINE


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path))


def test_the_survey_of_this_machine() -> None:
    progress: list[SurveyProgress] = []
    machine = survey(on_progress=progress.append, time_limit_s=60)

    on_cpu = machine.device.kind == "cpu"
    assert [step.probe for step in progress] == [
        probe for probe in PROBES if probe not in ("copies", "context") or not on_cpu
    ]
    assert progress[0].number == 1
    assert {step.num_probes for step in progress} == {6}
    before_the_rates = next(step for step in progress if step.probe == "arithmetic rate").readings
    assert [reading.name for reading in before_the_rates][-1:] == [
        "memory bandwidth" if on_cpu else "copy device to host, pageable"
    ]

    names = {reading.name for reading in machine.readings}
    assert {READING, "memory bandwidth", "matmul float32"} <= names
    assert all(reading.value > 0 for reading in machine.readings)
    for dtype in ("bfloat16", "float16"):
        said = [f for f in machine.findings if f"pretends to have {dtype}" in f.cause]
        assert len(said) == machine.only_pretends(dtype)

    assert machine.host.num_threads == torch.get_num_threads()
    assert machine.device.allocatable_bytes is not None
    assert 0 < machine.device.usable_bytes <= machine.host.total_bytes or not on_cpu
    assert len(machine.digest) == 16
    assert abs(machine.probed_unix_s - time.time()) < 60
    assert not machine.from_store
    adapter = machine_adapter()
    assert adapter.validate_json(adapter.dump_json(machine)) == machine


def test_time_that_is_over_leaves_probes_out_and_says_so() -> None:
    machine = survey(time_limit_s=0)
    assert machine.readings == ()
    assert machine.device.free_bytes > 0
    (finding,) = [f for f in machine.findings if "time limit" in f.cause]
    assert finding.cause == (
        "The time limit of 0 s ended the survey before: allocation, memory bandwidth, "
        "arithmetic rate."
    )


def test_a_probe_that_fails_becomes_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Reading:
        raise ZeroDivisionError("no time passed.\nmore")

    monkeypatch.setattr(module, "memory_bandwidth", broken)
    monkeypatch.setattr(nvml, "look", broken)
    machine, is_whole = module._run(None, 60, lambda digest: None)
    assert not is_whole
    said = [f.cause for f in machine.findings]
    assert "The probe of memory bandwidth failed: ZeroDivisionError: no time passed." in said
    assert "The probe of NVML failed: ZeroDivisionError: no time passed." in said
    assert machine.reading("memory bandwidth") is None
    assert machine.reading("matmul float32") is not None


def test_a_dtype_that_does_not_run_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def rate(torch: object, device: object, dtype: str, **_: object) -> Reading:
        if dtype == "bfloat16":
            raise RuntimeError("not implemented for BFloat16")
        return Reading(name=f"matmul {dtype}", unit="flop_per_s", value=1.0)

    monkeypatch.setattr(matmul, "rate", rate)
    machine = survey()
    assert machine.reading("matmul float16") is not None
    assert machine.reading("matmul bfloat16") is None
    assert any("does not compute in bfloat16" in f.cause for f in machine.findings)


def test_where_it_was_measured_is_said_of_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(name="memory bandwidth", unit="bytes_per_s", value=1.0, note="a copy")
    monkeypatch.setattr(module, "memory_bandwidth", lambda *_: reading)
    monkeypatch.setattr(module, "host_copies", lambda *_: iter(()))
    monkeypatch.setattr(module, "_measure_dtypes", lambda *_: None)
    notes = module._Notes(deadline_s=time.monotonic() + 60, on_progress=None)
    device = Device(
        kind="cuda", index=1, name="B 11", total_bytes=1, free_bytes=1, memory_from="NVML"
    )
    module._measure(torch, device, notes, num_devices=2)
    assert notes.readings[0].note == "a copy; measured on cuda:1 (B 11)"


def _said(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_the_child_keeps_speeds_and_takes_them_again() -> None:
    first, second = io.StringIO(), io.StringIO()
    assert module.main([], first) == 0
    assert module.main([], second) == 0
    measured = machine_adapter().validate_python(_said(first)[-1]["machine"])
    reused = machine_adapter().validate_python(_said(second)[-1]["machine"])
    steps = [progress_adapter().validate_python(one["progress"]) for one in _said(second)[:-1]]
    assert [step.probe for step in steps] == list(PROBES[:2])
    assert (measured.from_store, reused.from_store) == (False, True)
    assert measured.reading("matmul float32") == reused.reading("matmul float32")
    assert measured.probed_unix_s == reused.probed_unix_s
    assert store.load(measured.digest, store.cache_directory()) == measured


def test_a_survey_that_is_not_whole_is_not_kept() -> None:
    out = io.StringIO()
    module.main(["--time-limit-s", "0"], out)
    machine = machine_adapter().validate_python(_said(out)[-1]["machine"])
    assert store.load(machine.digest, store.cache_directory()) is None


def test_only_what_lasts_is_taken_from_a_kept_survey() -> None:
    def tried(value: float) -> Reading:
        return Reading(name=READING, unit="bytes", value=value)

    lasting = Finding(cause="It only pretends.", lasts=True)
    busy = Finding(cause="Another process was there.")
    kept: Machine = replace(
        MACHINE, readings=(tried(1.0), *MACHINE.readings), findings=(lasting, busy)
    )
    now = replace(
        MACHINE,
        readings=(tried(2.0),),
        findings=(Finding(cause="It is quiet."),),
        host=replace(MACHINE.host, available_bytes=77),
        probed_unix_s=0.0,
    )
    machine = with_kept_speeds(now, kept)
    assert machine.readings == (tried(2.0), *MACHINE.readings)
    assert [finding.cause for finding in machine.findings] == ["It is quiet.", "It only pretends."]
    assert machine.host.available_bytes == 77
    assert (machine.probed_unix_s, machine.from_store) == (12.5, True)
    # Without a new try, the old one says nothing of now.
    assert with_kept_speeds(replace(now, readings=()), kept).reading(READING) is None
