"""An exported script runs again unchanged, and tells its times, rows and losses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue

from autotune.errors import ExportError
from autotune.export import accelerate_script, rerun
from autotune.export import measure as child
from autotune.export.preparation import look
from autotune.export.rerun import ScriptTiming, measure_script
from tests.autotune.export import jobs
from tests.autotune.export.bundles import bundle_of
from tests.autotune.export.fakes import NEW

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}


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
    assert timing.log == tmp_path / "accelerator.log"


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
    request: dict[str, JsonValue] = {
        "script": str(script),
        "num_steps": 1,
        "driver": "accelerate",
        "output": str(tmp_path),
        "hook": None,
    }
    assert child.run(request) == {"failure": message}


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
