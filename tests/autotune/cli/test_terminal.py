"""What reaches a real terminal, and what is left of it afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune import journal, lease
from autotune.folding import fold
from autotune.run_directory import RunDirectory
from tests.testing.terminal import Terminal


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where the command line works; no engine survives the test."""
    yield tmp_path
    for path in (tmp_path / "autotune-runs").glob("*"):
        held = lease.read(RunDirectory(path).lease)
        if held is not None and held.is_alive:
            os.kill(held.process, signal.SIGKILL)


def test_an_interrupt_from_the_keyboard_stops_the_run_and_restores_the_terminal(
    directory: Path,
) -> None:
    with contextlib.closing(Terminal(directory, "slow", "tune", "--demo", "--name", "one")) as tty:
        tty.read_until("now   #0")
        tty.type("\x03")
        tty.read_until("Stopping after this trial")
        assert tty.wait() == 130
    shown = tty.bytes
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") == 1
    assert b"\x1b[?1049h" not in shown
    assert b"\x1b[?1000h" not in shown
    after = shown[shown.rindex(b"\x1b[?25h") :]
    assert b"Error: Stopped by SIGINT." in after
    assert b"baseline" in after


def test_a_terminal_that_hangs_up_stops_the_run_and_everything_is_saved(directory: Path) -> None:
    with contextlib.closing(Terminal(directory, "slow", "tune", "--demo", "--name", "one")) as tty:
        tty.read_until("now   #0")
        tty.hang_up()
        assert tty.wait() == 129
    run = RunDirectory(directory / "autotune-runs" / "one")
    view = fold(journal.read(run.journal))
    assert view.ended is not None
    assert [trial.state for trial in view.trials] == ["stopped"]
    assert lease.read(run.lease) is None


def test_without_colour_every_state_is_told_by_glyph_and_word(directory: Path) -> None:
    arguments = ("tune", "--demo", "--name", "one")
    variables = {"NO_COLOR": "1"}
    with contextlib.closing(Terminal(directory, "slow", *arguments, variables=variables)) as tty:
        tty.read_until("▸ running")
        tty.type("\x03\x03")
        tty.wait()
    colours = rb"\x1b\[(?:[0-9;]*;)?(?:3[0-79]|9[0-7])m"
    assert re.search(colours, tty.bytes) is None


@pytest.mark.parametrize(
    ("variables", "cause", "remedy"),
    [
        ({"TERM": "dumb"}, "whose TERM is dumb.", "TERM=xterm-256color autotune tui"),
        ({"TERM": ""}, "whose TERM is not set.", "TERM=xterm-256color autotune tui"),
        ({"CI": "1"}, "where CI is set", "env -u CI autotune tui"),
    ],
)
def test_what_keeps_the_terminal_ui_from_a_terminal_is_named(
    directory: Path, variables: dict[str, str], cause: str, remedy: str
) -> None:
    with contextlib.closing(Terminal(directory, "good", "tui", variables=variables)) as tty:
        assert tty.wait() == 2
    text = " ".join(tty.bytes.decode().split())
    assert cause in text
    assert remedy in text
    assert "needs a terminal" not in text


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"CI": "1"}])
def test_a_terminal_that_cannot_repaint_gets_lines(
    directory: Path, variables: dict[str, str]
) -> None:
    arguments = ("tune", "--demo", "--name", "one")
    with contextlib.closing(Terminal(directory, "good", *arguments, variables=variables)) as tty:
        assert tty.wait() == 0
    text = tty.bytes.decode().replace("\r\n", "\n")
    assert "00:00 run one started\n" in text
    assert "\x1b" not in text
    assert "\r" not in text
