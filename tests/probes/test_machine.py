from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

import probes
from probes.machine import Link, Machine, Reading, machine_adapter
from tests.probes.test_store import MACHINE


def _rates(**flop_per_s: float) -> Machine:
    readings = tuple(
        Reading(name=f"matmul {dtype}", unit="flop_per_s", value=value)
        for dtype, value in flop_per_s.items()
    )
    return replace(MACHINE, readings=readings)


def test_a_machine_goes_to_json_and_back() -> None:
    link = Link(backend="gloo", num_ranks=2, readings=(Reading(name="x", unit="s", value=1.0),))
    machine = replace(MACHINE, links=(link,))
    adapter = machine_adapter()
    assert adapter.validate_json(adapter.dump_json(machine)) == machine


def test_a_dtype_far_slower_than_float32_only_pretends() -> None:
    machine = _rates(float32=100.0, bfloat16=49.0, float16=51.0)
    assert machine.only_pretends("bfloat16")
    assert not machine.only_pretends("float16")
    assert not machine.only_pretends("float32")
    assert not machine.only_pretends("float8")


def test_without_float32_nothing_is_said_of_the_others() -> None:
    assert not _rates(bfloat16=1.0).only_pretends("bfloat16")


def test_importing_the_package_and_its_types_loads_no_torch() -> None:
    code = (
        "import sys, probes; assert 'pydantic' not in sys.modules;"
        "import probes.machine, probes.known, probes.survey;"
        "probes.known_machine, probes.Machine;"
        "print('torch' in sys.modules, 'psutil' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert said == "False False\n"


def test_public_names_are_there_and_others_are_not() -> None:
    for name in probes.__all__:
        assert getattr(probes, name).__module__.startswith("probes.")
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        probes.nonsense  # noqa: B018
