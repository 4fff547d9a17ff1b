"""A UI that loads while the command line is read: it is told what to show, or it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from autotune.cli import ahead
from autotune.cli.ahead import Ahead, begun_for
from autotune.display import output
from autotune.errors import AutotuneError

TELLS = "import os, sys; sys.exit(len(os.fdopen(int(sys.argv[1])).read()))"
"""Ends with the number of characters that it was told."""
PYTHON = (sys.executable, "-S", "-c")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was begun, on a terminal."""
    commands: list[list[str]] = []

    class Noted(Ahead):
        def __init__(self, command: list[str]) -> None:
            commands.append(command)
            super().__init__([*PYTHON, TELLS])

    monkeypatch.setattr(ahead, "Ahead", Noted)
    monkeypatch.setattr(output, "why_no_screen", lambda otherwise: None)
    return commands


def test_it_is_told_what_to_show_and_belongs_to_who_told_it() -> None:
    loading = Ahead([*PYTHON, TELLS])
    child = loading.take(["a run", "ü"])
    loading.drop()
    assert child is not None
    assert child.wait() == len('["a run", "\\u00fc"]')


def test_one_that_nobody_wants_is_ended_at_once() -> None:
    loading = Ahead([*PYTHON, "import time; time.sleep(60)"])
    child = loading._child
    assert child is not None
    loading.drop()
    assert child.returncode == -9
    loading.drop()


def test_one_that_died_is_not_taken() -> None:
    loading = Ahead([*PYTHON, "pass"])
    assert loading._child is not None
    psutil.Process(loading._child.pid).wait()
    assert loading.take(["x"] * 100_000) is None


def test_it_ends_by_itself_with_the_process_that_began_it() -> None:
    """As where that is killed: its end of the pipe closes, and no words came."""
    reads, writes = os.pipe()
    words = [sys.executable, "-P", "-m", "tui", "--words-from", str(reads)]
    root = str(Path(__file__).parents[3])
    child = subprocess.Popen(
        words, pass_fds=(reads,), stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}
    )
    os.close(reads)
    os.close(writes)
    said, _ = child.communicate(timeout=60)
    assert (child.returncode, said) == (0, b"")


@pytest.mark.parametrize(
    ("words", "is_begun"),
    [
        (["tui"], True),
        (["tui", "last", "--ascii"], True),
        (["tui", "--help"], False),
        (["tune", "--tui"], False),
        ([], False),
    ],
)
def test_only_the_command_that_shows_a_screen_begins_one(
    words: list[str], is_begun: bool, begun: list[list[str]]
) -> None:
    with begun_for(words) as loading:
        assert (loading is not None) == is_begun
        child = loading._child if loading is not None else None
    assert len(begun) == is_begun
    if child is not None:
        assert child.returncode is not None, "what was not taken has ended"


def test_none_is_begun_off_a_terminal_or_with_a_stranger(
    begun: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise AutotuneError("Another package called 'tui' hides ours.")

    monkeypatch.setattr(ahead, "check_installation", refuse)
    with begun_for(["tui"]) as loading:
        assert loading is None
    monkeypatch.undo()
    monkeypatch.setattr(output, "can_take_screen", lambda: False)
    with begun_for(["tui"]) as loading:
        assert loading is None
    assert begun == []
