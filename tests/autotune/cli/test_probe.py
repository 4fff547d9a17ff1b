from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autotune.cli.app import main
from autotune.cli.commands import probe
from probes.machine import Finding, Machine, Reading, machine_adapter
from tests.testing import runs

Captured = pytest.CaptureFixture[str]
MACHINE = replace(
    runs.machine(),
    readings=(
        Reading(
            name="memory bandwidth",
            unit="bytes_per_s",
            value=4.0e9,
            samples=(3.9e9, 4.0e9, 4.1e9),
            half_iqr=0.05e9,
            note="a copy",
        ),
        Reading(name="matmul float32", unit="flop_per_s", value=1.5e12),
    ),
    findings=(Finding(cause="No driver.", remedy="Install it.", is_problem=False),),
)


def _knows(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "known_machine", lambda **options: machine)


def test_probe_shows_readings_with_spread(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    _knows(MACHINE, monkeypatch)
    assert main(["probe"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "host Test processor, 2 cores",
        "memory 6.00 GiB available of 8.00 GiB (host)",
        "cpu:0 Test processor, 6.00 GiB free of 8.00 GiB (host)",
        "",
        "measured median ± half the IQR n",
        "memory bandwidth 4.00 GB/s 1.2 % 3 a copy",
        "matmul float32 1.50 TFLOP/s – 1",
        "",
        "· No driver. Install it.",
    ]


def test_probe_json_is_the_machine(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    _knows(MACHINE, monkeypatch)
    assert main(["probe", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert machine_adapter().validate_python(document["machine"]) == MACHINE


def test_probes_that_measure_nothing_are_a_device_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    finding = Finding(cause="The survey's process crashed.", remedy="Update the driver.")
    _knows(replace(runs.machine(), findings=(finding,)), monkeypatch)
    assert main(["probe", "--json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["machine"]["readings"] == []
    assert err == "Error: The survey's process crashed.\nHint: Update the driver.\n"
