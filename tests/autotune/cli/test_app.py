from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from autotune.cli import app
from autotune.cli.app import main
from autotune.cli.commands import runs as runs_command
from tests.testing import runs

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_version(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"autotune {version('autotune-advisor')}\n"


def test_without_a_command_the_help_is_shown(capsys: Captured) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert "Usage: autotune" in out
    assert err == ""


def test_help_names_nothing_that_is_not_there(capsys: Captured) -> None:
    main(["--help"])
    main(["tune", "--help"])
    assert "script" not in capsys.readouterr().out.split()
    assert main(["script"]) == 2


@pytest.mark.parametrize(
    ("arguments", "cause", "remedy"),
    [
        (["tnue"], "There is no command tnue.", "Did you mean tune?"),
        (["quite-unlike-any"], "There is no command quite-unlike-any.", "autotune --help"),
        (["tune", "--modle", "x"], "There is no option --modle", "--model"),
        (["tune", "--quite-unlike-any"], "There is no option --quite-unlike-any.", "tune --help"),
        (["tune", "--model"], "--model", "tune --help"),
        (["tune", "stray"], "stray", "tune --help"),
        (["show"], "RUN", "show --help"),
        (["trial", "one", "first"], "NUMBER", "trial --help"),
        (["tune", "--trials", "many"], "--trials takes a whole number, not 'many'.", "8"),
        (["tune", "--learning-rate", "low"], "--learning-rate takes a number, not 'low'.", "0.1"),
    ],
)
def test_what_was_mistyped_is_explained(
    arguments: list[str], cause: str, remedy: str, capsys: Captured
) -> None:
    assert main(arguments) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("Error: ")
    assert cause in first
    assert second.startswith("Hint: ")
    assert remedy in second


def test_json_is_one_document_for_errors_too(capsys: Captured) -> None:
    assert main(["tune", "--demo", "--trials", "x", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["recommendation"] is None
    assert document["schema"] == 1
    assert {*document["error"]} == {"cause", "remedy"}
    assert main(["show", "nothing", "--json"]) == 2
    assert "recommendation" not in json.loads(capsys.readouterr().out)


def test_a_variable_that_is_no_number_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("AUTOTUNE_TRIALS", "many")
    assert main(["tune", "--demo"]) == 2
    assert "AUTOTUNE_TRIALS" in capsys.readouterr().err


def test_a_broken_settings_file_stops_commands_but_not_their_help(
    tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "autotune.toml").write_text("memory-limt = '6GiB'")
    assert main(["runs"]) == 2
    assert "Did you mean 'memory-limit'?" in capsys.readouterr().err
    assert main(["runs", "--help"]) == 0


def test_settings_reach_every_command(tmp_path: Path, capsys: Captured) -> None:
    runs.write_run(tmp_path / "elsewhere", "one", [])
    (tmp_path / "pyproject.toml").write_text(
        "[tool.autotune]\nrun-dir = 'elsewhere'\njson = true\n"
    )
    assert main(["runs"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in document["runs"]] == ["one"]


@pytest.mark.parametrize(
    "words",
    [
        ("tune", "--demo", "--run-dir", "x" * 300),
        ("tune", "--demo", "--out", "x" * 300),
        ("estimate", "--demo", "--picture", "x" * 300 + "/a.svg"),
        ("estimate", "--model-config", "x" * 300, "--task", "causal-lm"),
        ("show", "x" * 300),
        ("tune", "--model", "x" * 300, "--dataset", "data.csv"),
        ("plan", "--model", "/" + "x" * 300, "--dataset", "data.csv", "--task", "causal-lm"),
        ("plan", "--model-config", "x" * 300, "--dataset", "data.csv", "--task", "causal-lm"),
    ],
)
def test_a_path_that_no_system_takes_is_no_internal_error(
    words: tuple[str, ...], tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "data.csv").write_text("text\nhello\n")
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "x" * 300 in err
    assert "went wrong" not in err
    assert words[0] != "plan" or "run directory" not in err


def test_an_internal_error_has_no_traceback_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def fail(*arguments: object) -> int:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(runs_command, "run", fail)
    assert main(["runs"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Error: Something went wrong inside autotune: ZeroDivisionError")
    assert "Traceback" not in err
    monkeypatch.setenv("AUTOTUNE_DEBUG", "1")
    assert main(["runs"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_outside_of_a_run_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def interrupt(*arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs_command, "run", interrupt)
    assert main(["runs"]) == 130
    assert capsys.readouterr().err.strip() == "Interrupted."
    assert main(["runs", "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["cause"] == "Interrupted."


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_in_order(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path
) -> None:
    def wait(*arguments: object) -> int:
        with tempfile.TemporaryDirectory(dir=tmp_path):
            os.kill(os.getpid(), number)
            time.sleep(60)
        return 0

    monkeypatch.setattr(runs_command, "run", wait)
    assert main(["runs", "--json"]) == 128 + number
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["cause"] == f"Ended by {number.name}."
    assert err == f"Ended by {number.name}.\n"
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_so(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def hang_up(*arguments: object) -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        return 0

    monkeypatch.setattr(runs_command, "run", hang_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["runs"]) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_error_that_stdout_cannot_take_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    for words, code in ((["show", "nothing"], 2), (["runs"], 1)):
        with Path("/dev/full").open("w") as full:
            monkeypatch.setattr(sys, "stdout", full)
            assert main([*words, "--json"]) == code
    err = capsys.readouterr().err
    assert "There is no run 'nothing'" in err
    assert "The result cannot be written to stdout: No space left on device." in err


def test_json_may_be_wished_for_by_a_variable_or_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path
) -> None:
    wrong = ["tune", "--trials", "many"]
    (tmp_path / "autotune.toml").write_text("json = true")
    assert main(wrong) == 2
    assert json.loads(capsys.readouterr().out)["recommendation"] is None
    (tmp_path / "autotune.toml").unlink()
    monkeypatch.setenv("AUTOTUNE_JSON", "1")
    assert main(wrong) == 2
    assert "error" in json.loads(capsys.readouterr().out)


def test_a_working_directory_that_is_gone_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        assert main(["runs"]) == 2
    finally:
        monkeypatch.chdir(tmp_path)
    assert "Error: The working directory is gone." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["show", "x" * 300], "There is no run"),
        (["tune", "--demo", "--name", "x" * 300], "A run cannot be called"),
        (["tune", "--demo", "--name", "two\nlines"], "A run cannot be called"),
        (["runs", "--run-dir", ""], "--run-dir: That is an empty path."),
        (["tune", "--demo", "--out", ""], "--out: That is an empty path."),
        (["runs", "--run-dir", "~nobody-of-that-name/x"], "begins with a home that is not known"),
        (["runs", "--run-dir", os.fsdecode(b"\xff")], "is no UTF-8"),
    ],
)
def test_a_place_that_cannot_be_is_a_usage_error(
    arguments: list[str], cause: str, capsys: Captured, tmp_path: Path
) -> None:
    assert main(arguments) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert cause in first
    assert second.startswith("Hint: ")
    assert list(tmp_path.iterdir()) == []


def test_completion_is_offered(capsys: Captured) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_AUTOTUNE_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", "autotune tune --memory")
        patch.setenv("COMP_CWORD", "2")
        with pytest.raises(SystemExit):
            app.main([])
    assert capsys.readouterr().out.split() == ["--memory-limit"]
