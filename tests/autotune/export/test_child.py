"""The child process answers, or its end is told: where, how, and with its last words."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from pydantic import JsonValue

from autotune.errors import ExportError
from autotune.export.child import ask, log_at

CHILD = "tests.autotune.export.children"
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    # Children import nothing from the current directory.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def ask_child(request: str, log: Path, time_limit_s: float = 60.0) -> JsonValue:
    environment = {"AUTOTUNE_TEST_VARIABLE": "seen"}
    return ask(CHILD, request, environment=environment, log=log, time_limit_s=time_limit_s)


def is_gone(process: int) -> bool:
    """Whether a process ends within a few seconds."""
    for _ in range(100):
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(process).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.05)
                continue
        return True
    return False


def test_the_answer_comes_back_and_variables_are_set(tmp_path: Path) -> None:
    assert ask_child("echo", tmp_path / "log") == {"variable": "seen"}


def test_an_exit_is_told_with_stage_and_last_words(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"for counting ended with exit code 3") as caught:
        ask_child("exit", tmp_path / "log")
    assert "last words" in caught.value.cause
    assert caught.value.remedy == f"Its log is {tmp_path / 'log'}."


def test_a_kill_is_told_by_the_name_of_its_signal(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"for counting was ended by SIGKILL"):
        ask_child("killed", tmp_path / "log")


def test_a_child_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"for \w+ took longer than 2 s"):
        ask_child("hang", tmp_path / "log", time_limit_s=2.0)


def test_nothing_that_the_child_started_is_left(tmp_path: Path) -> None:
    sleeper = ask_child("orphan", tmp_path / "log")
    assert isinstance(sleeper, int)
    assert is_gone(sleeper)


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\nfrom autotune.export.child import ask\n"
        f"ask('{CHILD}', 'hang', environment={{}}, log=Path('log'), time_limit_s=600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code.replace("'log'", f"'{tmp_path}/log'")])
    try:
        children: list[psutil.Process] = []
        for _ in range(200):
            children = psutil.Process(parent.pid).children()
            # Once it sleeps it has read its request, and watches.
            if children and children[0].num_threads() > 1:
                break
            time.sleep(0.05)
        assert children
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    assert is_gone(children[0].pid)


def test_the_child_of_a_rank_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ask_child("ranks", tmp_path / "log") == {"world_size": None}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def test_a_log_stands_where_it_is_wanted(tmp_path: Path, temporary: Path) -> None:
    wanted = tmp_path / "run" / "verify.log"
    with log_at(wanted, "trainer.log") as log:
        log.write_text("printed")
    assert log == wanted
    assert wanted.read_text() == "printed"
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("end", [None, KeyboardInterrupt(), OSError("full")])
def test_a_log_that_cannot_be_written_is_temporary(
    end: BaseException | None, tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "taken").touch()
    for wanted in (None, tmp_path, tmp_path / "taken" / "verify.log"):
        with contextlib.ExitStack() as stack:
            if end is not None:
                stack.enter_context(pytest.raises(type(end)))
            log = stack.enter_context(log_at(wanted, "trainer.log"))
            log.write_text("printed")
            assert log.name == "trainer.log"
            assert log.parent.parent == temporary
            if end is not None:
                raise end
        assert list(temporary.iterdir()) == []


def test_a_log_that_an_error_names_stays(temporary: Path) -> None:
    def fail() -> None:
        with log_at(None, "trainer.log") as log:
            log.write_text("why")
            raise ExportError("It failed.", f"Its log is {log}.")

    with pytest.raises(ExportError, match="It failed"):
        fail()
    (log,) = temporary.glob("*/trainer.log")
    assert log.read_text() == "why"
