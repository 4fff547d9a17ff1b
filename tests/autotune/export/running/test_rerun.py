"""An exported script runs again unchanged, and tells its times, rows and losses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import JsonValue

from autotune.errors import DeviceError, ExportError
from autotune.export.running import measure as child
from autotune.export.running import ranks, rerun
from autotune.export.running.ranks import RankedResult
from autotune.export.running.rerun import (
    ScriptTiming,
    measure_script,
    spread_averaging,
    whole_rounds,
)
from autotune.export.scripts import accelerate_script
from autotune.export.scripts.preparation import look
from tests.autotune.export import jobs
from tests.autotune.export.bundles import bundle_of
from tests.autotune.export.fakes import NEW
from tests.autotune.export.running.test_script_check import RANK

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[4])}


@contextmanager
def hook() -> Iterator[dict[str, int]]:
    """What a caller may add to the run of a script."""
    import sys

    found = {"before": len(sys.argv)}
    yield found
    found["after"] = 1


def measure(script: Path, num_steps: int, **more: str) -> ScriptTiming:
    return measure_script(
        script,
        num_steps=num_steps,
        environment=ENVIRONMENT,
        driver="accelerate",
        time_limit_s=200.0,
        log=script.with_suffix(".log"),
        hook=more.get("hook"),
    )


def test_steps_are_timed_and_counted(tmp_path: Path) -> None:
    job = jobs.make(jobs.causal, tmp_path)
    made = bundle_of(job.workload, micro_batch_size=2, accumulation_steps=2)
    script = tmp_path / "accelerator.py"
    script.write_text(accelerate_script.render(made, look(made, tmp_path / "scratch"), NEW))
    timing = measure(script, 4, hook=f"{__name__}:hook")
    # Ten texts, of which one has a single token: the third step is a short one.
    assert timing.step_rows == (4, 4, 1, 4)
    assert len(timing.step_times_s) == 4
    assert min(timing.step_times_s) > 0
    assert timing.losses == pytest.approx(jobs.run(script, 4).losses, rel=1e-4)
    assert timing.extra == {"before": 2, "after": 1}


def request(script: Path, **changes: JsonValue) -> dict[str, JsonValue]:
    """What the child is asked for one step."""
    return {
        "script": str(script),
        "num_steps": 1,
        "driver": "accelerate",
        "output": str(script.parent),
        "hook": None,
        "num_ranks": 1,
        "device_type": "cpu",
        **changes,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise ValueError('no such column')", "no such column"),
        ("raise KeyError", "KeyError"),
        ("", "it made 0 optimizer steps and not 1"),
    ],
)
def test_the_child_tells_what_went_wrong(text: str, message: str, tmp_path: Path) -> None:
    script = tmp_path / "accelerator.py"
    script.write_text(text)
    assert child.run(request(script)) == {"failure": message}


def test_the_failure_of_a_script_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "accelerator.py"
    with pytest.raises(ExportError, match="There is no"):
        measure(script, 1)
    script.write_text("")
    monkeypatch.setattr(rerun, "ask", lambda *args, **kwargs: {"failure": "no such column"})
    with pytest.raises(ExportError, match=r"accelerator\.py failed: no such column") as caught:
        measure(script, 1)
    assert caught.value.remedy == f"Its log is {tmp_path / 'accelerator.log'}."


def test_a_machine_with_fewer_devices_than_ranks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "accelerator.py"
    script.write_text("")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    answer = child.run(request(script, num_ranks=2, device_type="cuda"))
    assert answer == {"num_devices": 1}
    monkeypatch.setattr(rerun, "ask", lambda *args, **kwargs: answer)
    with pytest.raises(DeviceError, match="trains on 2 cuda devices, and this machine has 1"):
        measure_script(
            script,
            num_steps=1,
            environment={},
            driver="accelerate",
            time_limit_s=1.0,
            num_ranks=2,
            device_type="cuda",
            log=tmp_path / "log",
        )


def test_a_script_that_trains_alone_is_not_the_one_of_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(RANK, world_size=1)
    results = (RankedResult(accounts=(one, one)),)
    monkeypatch.setattr(ranks, "run", lambda *args, **kwargs: results)
    answer = child.run(request(tmp_path / "accelerator.py", num_ranks=2))
    assert answer == {"failure": "it trained on 1 rank and not 2"}


def test_rounds_are_whole() -> None:
    assert [whole_rounds(18, steps) for steps in (1, 2, 16, 18, 64)] == [18, 18, 32, 18, 64]


@pytest.mark.parametrize("num_before", [0, 1, 2, 3, 4, 5])
def test_what_averaging_took_is_spread_over_its_round(num_before: int) -> None:
    # A step takes 1 s, and the one after every fourth 2 s more.
    times_s = [1.0 + 2.0 * ((num_before + index) % 4 == 0) for index in range(8)]
    assert sum(times_s) == 12.0
    assert spread_averaging(times_s, 4, num_before=num_before) == pytest.approx([1.5] * 8)
    assert spread_averaging(times_s, 1, num_before=num_before) == tuple(times_s)


def test_a_round_keeps_its_time_whatever_the_steps_took() -> None:
    times_s = (1.0, 5.0, 2.0, 0.5)
    spread = spread_averaging(times_s, 2, num_before=2)
    assert sum(spread[:2]) == pytest.approx(6.0)
    assert sum(spread[2:]) == pytest.approx(2.5)
