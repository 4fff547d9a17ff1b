from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from probes.child import ChildResult, run_module

CHILD = "tests.testing.odd_child"


def test_lines_come_back_and_in_order() -> None:
    heard: list[str] = []
    result = run_module(CHILD, ["say", "a b"], time_limit_s=30, on_line=heard.append)
    assert result == ChildResult(
        lines=("say a b",), returncode=0, is_timed_out=False, last_error=""
    )
    assert heard == ["say a b"]


def test_what_else_prints_does_not_reach_the_channel() -> None:
    result = run_module(CHILD, ["noise"], time_limit_s=30)
    assert result.lines == ("noise",)
    assert result.last_error == "and so does its C code"


def test_codes_and_crashes_are_told() -> None:
    assert run_module(CHILD, ["code"], time_limit_s=30).returncode == 7
    crashed = run_module(CHILD, ["crash"], time_limit_s=30)
    assert crashed.returncode == 1
    assert crashed.last_error == "ValueError: the child broke"
    assert not crashed.was_killed


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal there")
def test_a_killed_child_is_told_from_one_that_ran_out_of_time() -> None:
    killed = run_module(CHILD, ["killed"], time_limit_s=30)
    assert (killed.returncode, killed.was_killed) == (-9, True)
    hung = run_module(CHILD, ["hang"], time_limit_s=2)
    assert (hung.is_timed_out, hung.was_killed, hung.lines) == (True, False, ("hang",))


def test_a_child_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    result = run_module(CHILD, ["say"], time_limit_s=30)
    assert result.returncode == 127
    assert "/nowhere/python" in result.last_error


def test_an_exception_of_the_caller_ends_the_child() -> None:
    process: list[int] = []

    def hear(line: str) -> None:
        if line.isdigit():
            process.append(int(line))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_module(CHILD, ["pid"], time_limit_s=30, on_line=hear)
    assert not psutil.pid_exists(process[0])


def test_who_waits_is_asked_meanwhile_and_may_leave() -> None:
    process: list[int] = []

    def hear(line: str) -> None:
        if line.isdigit():
            process.append(int(line))

    def leave() -> None:
        if process:
            raise KeyboardInterrupt

    start_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_module(CHILD, ["pid"], time_limit_s=60, on_line=hear, on_wait=leave)
    assert time.monotonic() - start_s < 30
    assert not psutil.pid_exists(process[0])


def test_the_child_leaves_with_its_parent() -> None:
    code = (
        "from probes.child import run_module;"
        f"run_module({CHILD!r}, ['pid'], time_limit_s=60, on_line=lambda l: print(l, flush=True))"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == "pid\n"
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    deadline_s = time.monotonic() + 20
    while psutil.pid_exists(child) and time.monotonic() < deadline_s:
        if psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.05)
    else:
        assert not psutil.pid_exists(child)


def test_a_foreign_package_in_the_working_directory_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes/__init__.py").write_text("raise RuntimeError('the foreign one')\n")
    monkeypatch.chdir(tmp_path)
    assert run_module(CHILD, ["where"], time_limit_s=30).lines == ("where", "False")
