"""What is done with a finished run, and the plan before one. The work is tested elsewhere."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from autotune import delivery, planning
from autotune.cli.app import main
from autotune.cli.commands.tune import next_steps
from autotune.configuration import Configuration
from autotune.errors import ExportError, UsageError
from autotune.events import Document
from autotune.export import write
from autotune.export.running import rerun
from autotune.export.running.rerun import ScriptTiming
from autotune.export.write import ExportedFile
from autotune.folding import fold
from autotune.journal import read
from autotune.outcome import Outcome, OutOfMemory
from autotune.request import Request
from autotune.run_directory import RunDirectory
from autotune.search.trials import TrialResult
from autotune.view import TrialView
from probes.machine import machine_adapter
from tests.autotune.test_delivery import finished
from tests.testing import runs

Captured = pytest.CaptureFixture[str]
FILE = ExportedFile(name="trainer.py", consumer="Python", verified_with="one step", sha256="0")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunDirectory:
    """A finished run called `one` in the working directory."""
    monkeypatch.chdir(tmp_path)
    events = [*runs.searching("one"), *runs.ending("one", tmp_path / "exported")]
    return runs.write_run(tmp_path / "autotune-runs", "one", events)


@dataclass(kw_only=True)
class Exports:
    """What was asked of the export."""

    asked: list[tuple[str, Path, str | None, bool]] = field(default_factory=list)

    def __call__(
        self, run: RunDirectory, directory: Path, *, alternative: str | None, force: bool
    ) -> tuple[ExportedFile, ...]:
        self.asked.append((run.name, directory, alternative, force))
        return (FILE,)


def test_export_writes_where_it_is_told(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    exports = Exports()
    monkeypatch.setattr(delivery, "export_run", exports)
    assert main(["export", "one"]) == 0
    out = capsys.readouterr().out
    assert out == "Files in autotune-runs/one/out\n  trainer.py  read by Python\n"
    words = ["export", "one", "--out", "o", "--force", "--alternative", "least-memory", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1,
        "run": "one",
        "directory": str(tmp_path / "o"),
        "files": [
            {
                "name": "trainer.py",
                "consumer": "Python",
                "verified_with": "one step",
                "sha256": "0",
            }
        ],
    }
    assert exports.asked == [
        ("one", Path("autotune-runs/one/out"), None, False),
        ("one", Path("o"), "least memory", True),
    ]


def test_an_export_that_is_refused_says_why(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def refuse(*arguments: object, **options: object) -> tuple[ExportedFile, ...]:
        raise ExportError("trainer.py was not accepted.", "See the log.")

    monkeypatch.setattr(delivery, "export_run", refuse)
    assert main(["export", "one", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] == {
        "cause": "trainer.py was not accepted.",
        "remedy": "See the log.",
    }
    assert err.endswith("Error: trainer.py was not accepted.\nHint: See the log.\n")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The part of a bundle that verifying looks at."""

    document: Document
    configuration: Configuration = runs.BEST
    driver: str = "trainer"
    device_type: str = "cpu"
    num_nodes: int = 1
    has_scripts: bool = True
    launch_environment: dict[str, str] = field(default_factory=dict)
    trials: tuple[TrialView, ...] = ()


def _verifies(
    step_s: float,
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, object] | None = None,
    **changes: object,
) -> list[Path]:
    places: list[Path] = []

    def verify(bundle: object, directory: Path) -> tuple[ExportedFile, ...]:
        places.append(directory)
        return (FILE,)

    def measure(script: Path, *, num_steps: int, **options: object) -> ScriptTiming:
        places.append(script)
        if asked is not None:
            asked.update(options, num_steps=num_steps)
        # The steps of a warm-up are slow, and not counted.
        return ScriptTiming(
            step_times_s=(9.0, 9.0, *[step_s, step_s * 1.001] * (num_steps // 2 - 1)),
            step_rows=(64,) * num_steps,
            losses=(1.0,) * num_steps,
            extra={},
        )

    bundle = Bundle(document=runs.answer("one"), **changes)  # type: ignore[arg-type]
    monkeypatch.setattr(delivery, "bundle_of", lambda run: bundle)
    monkeypatch.setattr(write, "verify", verify)
    monkeypatch.setattr(rerun, "measure_script", measure)
    return places


def test_verify_holds_a_script_against_the_promise(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    places = _verifies(64 / 40.0, monkeypatch)
    assert main(["verify", "one"]) == 0
    assert places == [tmp_path / "exported", tmp_path / "exported" / "trainer.py"]
    first, second = capsys.readouterr().out.splitlines()
    assert first == "✓ 1 file read back by their consumers"
    assert second.startswith("✓ as promised: trainer.py trains 40.0 samples/s (95 %: ")
    assert second.endswith("promised were 40.0 samples/s (95 %: 39.6 to 40.4) (±0.0 %)")


def test_verify_tells_the_difference_and_fails(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    _verifies(64 / 30.0, monkeypatch)
    assert main(["verify", "one", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["inside"] is False
    assert document["ratio"] == pytest.approx(0.75, rel=0.01)
    assert document["samples_per_s"] == pytest.approx(30.0, rel=0.01)
    assert document["promised"] == {"samples_per_s": 40.0, "samples_per_s_ci95": [39.6, 40.4]}
    assert main(["verify", "one"]) == 1
    out, err = capsys.readouterr()
    assert "✗ not as promised" in out
    assert "This machine itself may be slower now than when it was tuned." in err


def test_a_difference_names_the_trial_that_tells_what_the_machine_does_now(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    trials = fold(runs.records(runs.searching("one"))).trials
    _verifies(64 / 50.0, monkeypatch, trials=trials, configuration=trials[1].configuration)
    assert main(["verify", "one"]) == 1
    err = capsys.readouterr().err
    assert "This machine itself may be faster now than when it was tuned." in err
    assert "`autotune trial one 1` measures the same configuration again" in err


def test_verify_starts_all_ranks_and_times_whole_rounds(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    asked: dict[str, object] = {}
    averaging = replace(runs.BEST, world_size=2, local_sgd_steps=16)
    _verifies(64 / 40.0, monkeypatch, asked, configuration=averaging)
    assert main(["verify", "one"]) == 0
    assert (asked["num_ranks"], asked["num_steps"]) == (2, 2 + 32)
    out, err = capsys.readouterr()
    assert "as promised: trainer.py trains on 2 ranks 40.0 samples/s" in out
    assert "Training 34 steps with trainer.py on 2 ranks" in err


def test_verify_cannot_try_the_speed_of_several_nodes(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    places = _verifies(1.0, monkeypatch, num_nodes=2)
    assert main(["verify", "one"]) == 3
    assert "trained on 2 nodes, and its speed cannot be tried on one." in capsys.readouterr().err
    assert len(places) == 1, "files are read back all the same"


def test_a_run_without_a_recommendation_cannot_be_exported_or_verified(
    run: RunDirectory, tmp_path: Path, capsys: Captured
) -> None:
    runs.write_run(tmp_path / "autotune-runs", "two", runs.searching("two"))
    for command in ("export", "verify"):
        assert main([command, "two"]) == 2
        assert "Error: The run 'two' has no recommendation yet.\n" in capsys.readouterr().err


def _reruns(outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    def again(run: RunDirectory, number: int) -> tuple[TrialView, TrialResult]:
        trial = fold(runs.records(runs.searching("one"))).trial(number)
        if trial is None:
            raise UsageError(f"There is no trial {number}.", "There are 3.")
        return trial, TrialResult(outcome=outcome, wall_s=2.0, overhead_s=0.5)

    monkeypatch.setattr(planning, "rerun_trial", again)


def test_a_trial_is_shown_beside_what_it_was(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    _reruns(runs.measured(38.0, 2 * runs.GIB), monkeypatch)
    log = run.trial(1) / "again.log"
    log.parent.mkdir(parents=True)
    log.touch()
    assert main(["trial", "one", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Trial 1: micro-batch size 16, 4 accumulation steps, no checkpointing",
        "  before  ✓ measured: 40.0 samples/s, peak 2.00 GiB",
        "  now     ✓ measured: 38.0 samples/s, peak 2.00 GiB (−5.0 %)",
        "  log     autotune-runs/one/trials/001/again.log",
    ]


def test_a_trial_as_json_and_one_that_ends_otherwise(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    _reruns(OutOfMemory(where="host", cause="the system"), monkeypatch)
    assert main(["trial", "one", "1", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["run"], document["number"]) == ("one", 1)
    assert document["before"]["measured"]["samples_per_s"] == 40.0
    assert document["now"]["outcome"] == "out_of_memory"
    assert document["now"]["cause"] == "the system"
    assert main(["trial", "one", "7"]) == 2
    assert "has no trial 7." in capsys.readouterr().err


def _plan(request: Request) -> Document:
    assert request.spec.demo
    candidates = (runs.BASELINE, runs.BEST, runs.TOO_LARGE)
    return {
        "schema": 1,
        "baseline": runs.BASELINE.to_json(),
        "candidates": [{"configuration": c.to_json(), "predicted": None} for c in candidates],
        "ruled_out": [{"what": "micro-batch size 128", "reason": "too few rows", "num_removed": 3}],
        "memory_limit_bytes": 4 * runs.GIB,
        "usable_bytes": 3 * runs.GIB,
        "limit_source": "the limit you set",
        "parity": "Loss parity holds.",
        "workload": {"model_class": "GPT2LMHeadModel", "num_rows": None},
        "environment": {},
        "warnings": [{"cause": "It is warm.", "remedy": None}],
        "machine": machine_adapter().dump_python(runs.machine(), mode="json"),
    }


@pytest.mark.parametrize("words", [["plan", "--demo"], ["tune", "--demo", "--dry-run"]])
def test_a_plan_lists_what_would_be_tried_and_what_not(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "plan", _plan)
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines() == [
        "work      GPT2LMHeadModel, a stream of rows",
        "machine   Test processor, 2 cores",
        "memory    limit 4.00 GiB (the limit you set), 3.00 GiB usable",
        "parity    Loss parity holds.",
        "baseline  micro-batch size 8, 8 accumulation steps, no checkpointing",
        "",
        "3 configurations to choose from",
        "  no checkpointing               8×8  16×4",
        "  checkpointing every 2nd layer  64×1",
        "",
        "Ruled out",
        "  - micro-batch size 128: too few rows",
        "",
        "Warnings",
        "  ▲ It is warm.",
    ]
    assert main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["candidates"]) == 3
    assert not (tmp_path / "autotune-runs").exists()


def test_a_plan_tells_ranks_apart_and_what_may_be_averaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    candidates = [
        Configuration(micro_batch_size=16, accumulation_steps=1, world_size=2),
        Configuration(micro_batch_size=8, accumulation_steps=2, world_size=2),
        Configuration(micro_batch_size=32, accumulation_steps=1),
    ]

    def planned(steps: list[int]) -> Callable[[Request], Document]:
        listed = [{"configuration": c.to_json(), "predicted": None} for c in candidates]
        changes: dict[str, Any] = {"candidates": listed, "local_sgd_steps": steps}
        return lambda request: {**_plan(request), **changes}

    words = ["plan", "--demo", "--processes", "2"]
    monkeypatch.setattr(planning, "plan", planned([2, 4, 8]))
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[5] == (
        "averaging in every step (DDP), or local SGD every 2, 4 or 8: the most promising is tried"
    )
    assert lines[7:10] == [
        "3 configurations to choose from",
        "  2 ranks  no checkpointing  16×1  8×2",
        "  1 rank   no checkpointing  32×1",
    ]
    monkeypatch.setattr(planning, "plan", planned([16]))
    assert main([*words, "--local-sgd", "16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[5] == "averaging local SGD every 16 optimizer steps, as asked"


@pytest.mark.parametrize("command", ["plan", "tune"])
def test_far_more_processes_than_cores_are_refused_at_once(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, "--demo", "--processes", "100000"]) == 2
    assert "100000 processes are far more than the" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_next_step_after_a_run_on_ranks_starts_all_of_them(tmp_path: Path) -> None:
    run = finished(tmp_path / "my runs", replace(runs.demo_request(), processes=4))
    first, second = next_steps(run, fold(read(run.journal)))
    script = shlex.quote(str(tmp_path / "my runs" / "out" / "trainer.py"))
    assert first == f"OMP_NUM_THREADS=1 torchrun --nproc-per-node 4 {script}"
    assert second == f"autotune verify job --run-dir '{tmp_path / 'my runs'}'"
