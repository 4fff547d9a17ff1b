"""`tune` in this process, over an engine that measures nothing."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune import journal, starting
from autotune.cli import documents
from autotune.cli.app import main
from autotune.folding import fold
from autotune.run_directory import RunDirectory
from tests.testing import fake_engine, runs

Captured = pytest.CaptureFixture[str]
Tune = Callable[..., int]


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tune:
    """Runs `tune --name one` with an engine that plays a story."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(starting, "start_engine", fake_engine.start_engine)

    def run(story: str, *arguments: str) -> int:
        monkeypatch.setenv("AUTOTUNE_TEST_STORY", story)
        return main(["tune", "--name", "one", *arguments])

    return run


def test_a_good_run_prints_the_answer_on_stdout_and_talk_on_stderr(
    tune: Tune, tmp_path: Path, capsys: Captured
) -> None:
    assert tune("good", "--demo") == 0
    out, err = capsys.readouterr()
    assert out.startswith(
        "Run one recommends micro-batch size 16, 4 accumulation steps, no checkpointing\n"
    )
    assert "+60 % samples/s over 8×8 (95 %: +50 % to +70 %)" in out
    assert "2.00 GiB of 4.00 GiB" in out
    assert "python " + str(tmp_path / "autotune-runs/one/out/trainer.py") in out
    assert "autotune verify one" in out
    assert "✓ trial 1 measured: 40.0 samples/s" in err
    assert "\x1b" not in out + err
    assert "\r" not in out + err


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("--demo", "--storage", "nonsense"), "The storage nonsense is no database URL."),
        (("--demo", "--storage", "sqlite:///none/there.db"), "cannot be opened (unable to open"),
        (
            ("--model-config", "none.json", "--dataset", "none.csv", "--task", "causal-lm"),
            "The model config none.json does not exist.",
        ),
        (("--demo", "--processes", "2", "--global-batch-size", "9"), "cannot be shared by 2 ranks"),
    ],
)
def test_what_is_wrong_from_the_start_leaves_no_run(
    arguments: tuple[str, ...], cause: str, tune: Tune, tmp_path: Path, capsys: Captured
) -> None:
    assert tune("good", *arguments) == 2
    error, hint, *rest = capsys.readouterr().err.splitlines()
    assert cause in error
    assert hint.startswith("Hint: ")
    assert rest == []
    assert not (tmp_path / "autotune-runs").exists()


def test_json_is_one_document_on_stdout(tune: Tune, capsys: Captured) -> None:
    assert tune("good", "--demo", "--json", "--display", "none") == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == runs.answer("one")
    assert err == ""


@pytest.mark.parametrize(("story", "goes_on"), [("good", False), ("slow", True)])
def test_a_run_left_alone_says_where_it_is_even_if_it_ended_meanwhile(
    story: str,
    goes_on: bool,
    tune: Tune,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: Captured,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object) -> subprocess.Popen[bytes]:
        engine = fake_engine.start_engine(*arguments)  # type: ignore[arg-type]
        started.append(engine)
        if not goes_on:
            os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)
        return engine

    monkeypatch.setattr(starting, "start_engine", start)
    assert tune(story, "--demo", "--detach", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    (engine,) = started
    assert document["run"] == "one"
    assert Path(document["path"]).absolute() == tmp_path / "autotune-runs/one"
    assert document["process"] == (engine.pid if goes_on else None)
    assert (document["recommendation"] is None) == goes_on
    if goes_on:
        os.kill(engine.pid, signal.SIGTERM)
        os.waitpid(engine.pid, 0)


@pytest.mark.parametrize(("story", "code"), [("infeasible", 4), ("unconfirmed", 5)])
def test_without_a_recommendation_the_document_says_why(
    tune: Tune, capsys: Captured, story: str, code: int
) -> None:
    assert tune(story, "--demo", "--json") == code
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["recommendation"] is None
    assert document["error"] == {"cause": "It does not fit.", "remedy": "Allow 5 GiB."}
    assert [t["outcome"] for t in document["trials"]] == ["measured", "measured", "out_of_memory"]
    assert document["trials"][2]["cause"] == "the limit of 4.00 GiB"
    assert "Error: It does not fit.\nHint: Allow 5 GiB." in err


def test_an_engine_that_dies_is_told_with_its_last_words_and_the_run_goes_on(
    tune: Tune, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tune("dies", "--demo", "--run-dir", "my runs") == 1
    out, err = capsys.readouterr()
    assert "Error: The engine ended without a word (killed by SIGKILL).\n" in err
    command = "autotune tune --resume --name one --run-dir 'my runs'"
    assert f"`{command}`" in err
    assert err.endswith("  last words of the engine\n")
    assert "✓ baseline" in out

    monkeypatch.setenv("AUTOTUNE_TEST_STORY", "good")
    assert main(shlex.split(command)[1:]) == 0, "it can be pasted"
    out, err = capsys.readouterr()
    assert "run one goes on" in err
    assert "trial 0" not in err, "what an earlier engine did is not told again"
    assert "recommends micro-batch size 16" in out


def test_an_engine_that_dies_when_it_resumes_is_not_covered_by_an_old_answer(
    tune: Tune, capsys: Captured
) -> None:
    assert tune("good", "--demo") == 0
    capsys.readouterr()
    assert tune("dies", "--resume", "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["recommendation"] is None
    assert "without a word" in document["error"]["cause"]


def test_a_name_that_is_taken_is_a_usage_error(tune: Tune, capsys: Captured) -> None:
    assert tune("good", "--demo") == 0
    capsys.readouterr()
    assert tune("good", "--demo") == 2
    assert "--resume" in capsys.readouterr().err
    assert tune("good", "--demo", "--fresh", "--json") == 0


def test_a_damaged_journal_is_told_before_an_engine_starts(
    tune: Tune, tmp_path: Path, capsys: Captured
) -> None:
    run = runs.write_run(tmp_path / "autotune-runs", "one", runs.searching("one"))
    run.journal.write_bytes(b"{ broken\n" + run.journal.read_bytes())
    assert tune("good", "--resume") == 1
    assert "Line 1 of autotune-runs/one/journal.jsonl is damaged" in capsys.readouterr().err
    assert not run.engine_log.exists()


def test_a_run_directory_that_cannot_be_written_is_a_usage_error(
    tune: Tune, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "file").touch()
    assert tune("good", "--demo", "--run-dir", "file") == 2
    err = capsys.readouterr().err
    assert "cannot be written" in err
    assert "--run-dir" in err


def test_an_output_directory_that_cannot_take_the_files_is_told_before_the_run(
    tune: Tune, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "file").touch()
    assert tune("good", "--demo", "--out", "file/out") == 2
    assert "file is a file" in capsys.readouterr().err
    if Path("/proc/version").exists():
        assert tune("good", "--demo", "--out", "/proc/out") == 2
        assert "/proc/out cannot be written" in capsys.readouterr().err
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "recommendation.json").write_text('{"run": "another"}')
    assert tune("good", "--demo", "--out", "out") == 2
    assert "holds files of run 'another'" in capsys.readouterr().err
    assert not (tmp_path / "autotune-runs").exists()
    assert tune("good", "--demo", "--out", "out", "--force") == 0
    (tmp_path / "out" / "recommendation.json").write_text('{"run": "one"}')
    assert tune("good", "--demo", "--out", "out", "--fresh") == 0


def test_what_the_real_engine_says_of_bad_input_reaches_the_reader(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["tune", "--model", "./nowhere", "--dataset", "d.csv", "--task", "causal-lm"]
    assert main([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    cause = "The model ./nowhere does not exist. The dataset d.csv does not exist."
    assert json.loads(out)["error"]["cause"] == cause, "all of it"
    assert f"Error: {cause}\nHint: " in err
    assert "Traceback" not in err
    assert main(arguments) == 2
    assert capsys.readouterr().out == ""


def test_the_journal_tells_the_same_story_afterwards(tune: Tune, tmp_path: Path) -> None:
    assert tune("good", "--demo", "--display", "none") == 0
    run = RunDirectory(tmp_path / "autotune-runs" / "one")
    view = fold(journal.read(run.journal))
    assert documents.state(run, view) == "finished"
    assert [trial.state for trial in view.trials] == ["measured", "measured", "out_of_memory"]


@pytest.mark.parametrize(
    ("number", "ends"), [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGHUP, False)]
)
def test_a_run_that_nobody_will_know_of_is_ended_before_its_first_word(
    number: signal.Signals,
    ends: bool,
    tune: Tune,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object) -> subprocess.Popen[bytes]:
        silent = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
        started.append(subprocess.Popen(silent))
        os.kill(os.getpid(), number)
        return started[0]

    monkeypatch.setattr(starting, "start_engine", start)
    monkeypatch.setattr("autotune.cli.commands.tune.DETACH_PATIENCE_S", 0.5)
    code = tune("", "--demo", "--detach", "--json")
    document = json.loads(capsys.readouterr().out)
    (engine,) = started
    if ends:
        assert engine.returncode == -signal.SIGTERM
        assert code == 128 + number
        assert document["error"]["cause"] == f"Stopped by {number.name}."
    else:
        assert (code, document["process"]) == (0, engine.pid)
        os.kill(engine.pid, signal.SIGKILL)
        os.waitpid(engine.pid, 0)


def test_a_resumed_run_replaces_its_own_files_and_commands_lead_to_it(
    tune: Tune, tmp_path: Path, capsys: Captured
) -> None:
    assert tune("unconfirmed", "--demo", "--out", "out") == 5
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "recommendation.json").write_text('{"run": "one"}')
    assert main(["tune", "--resume"]) == 5
    assert "holds files" not in capsys.readouterr().err
    # By its path, from where its name alone does not lead to it.
    (tmp_path / "elsewhere").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path / "elsewhere")
        patch.setenv("AUTOTUNE_TEST_STORY", "good")
        place = str(tmp_path / "autotune-runs" / "one")
        assert main(["tune", "--resume", "--name", place]) == 0
    assert f"autotune verify one --run-dir {Path(place).parent}" in capsys.readouterr().out


@pytest.mark.parametrize("leaves_room", [True, False])
def test_an_engine_that_died_on_a_full_disk_says_so(
    leaves_room: bool, tune: Tune, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    usage = shutil.disk_usage("/")._replace(free=2**30 if leaves_room else 4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    assert tune("dies", "--demo") == 1
    err = capsys.readouterr().err
    assert ("one is full.\nHint: Make room there; `autotune tune" in err) != leaves_room
    assert ("ended without a word" in err) == leaves_room
