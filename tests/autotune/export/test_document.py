"""recommendation.json has the public shape."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from autotune.configuration import Configuration
from autotune.export import document
from tests.autotune.export.bundles import GIB, bundle


def test_it_reads_as_configurations_and_numbers() -> None:
    found = document.read(bundle().document)
    answer = found.recommendation
    assert answer.configuration == Configuration(micro_batch_size=4, accumulation_steps=2)
    assert answer.measured.memory.total_bytes == 2 * GIB
    assert answer.baseline.measured is not None
    assert answer.baseline.measured.samples_per_s == 100.0
    assert answer.alternatives[0].kind == "closest to the baseline"
    assert found.trials[2].outcome == "out_of_memory"


def test_a_baseline_that_did_not_fit_has_no_readings() -> None:
    odd: Any = copy.deepcopy(bundle().document)
    odd["recommendation"]["baseline"]["measured"] = {}
    odd["recommendation"]["speedup"] = None
    assert document.read(odd).recommendation.baseline.measured is None


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), 2, "schema"),
        (("recommendation",), None, "recommendation"),
        (("recommendation", "configuration", "global_batch_size"), 9, "is not 4 × 2 × 1"),
        (("recommendation", "measured", "samples_per_s"), "fast", "samples_per_s"),
        (("recommendation", "measured", "memory", "total_bytes"), 1.5, "total_bytes"),
        (("recommendation", "sample_efficiency", "basis"), "guessed", "basis"),
        (("trials", 0, "outcome"), "pruned", "outcome"),
        (("cost", "wall_s"), float("nan"), "wall_s"),
    ],
)
def test_another_shape_is_refused(path: tuple[str | int, ...], value: object, message: str) -> None:
    odd: Any = copy.deepcopy(bundle().document)
    place = odd
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValidationError, match=message):
        document.read(odd)


def test_the_device_is_named() -> None:
    assert document.device_name({"machine": {"devices": [{"name": "GPU"}, {"name": "GPU"}]}}) == (
        "2 × GPU"
    )
    assert document.device_name({"machine": {}}) == "this machine"


def test_the_file_is_compared_with_what_was_meant(tmp_path: Path) -> None:
    meant = bundle().document
    path = tmp_path / "recommendation.json"
    path.write_text(document.as_json(meant))
    assert document.verify(path, meant) == "the public schema, version 1"
    other = json.loads(path.read_text())
    other["cost"]["trials"] = 99
    path.write_text(json.dumps(other))
    with pytest.raises(ValueError, match="cost differs"):
        document.verify(path, meant)
    path.write_text("{")
    with pytest.raises(ValueError, match="Expecting"):
        document.verify(path, meant)


def test_numbers_that_json_has_not_are_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        document.as_json({"value": float("inf")})
