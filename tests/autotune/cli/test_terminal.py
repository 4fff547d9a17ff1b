"""What reaches a real terminal, and what is left of it afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune import journal, lease
from autotune.run_directory import RunDirectory
from autotune.view import fold

REPOSITORY = Path(__file__).parents[3]


class Terminal:
    """A command line on a pseudo-terminal of its own."""

    def __init__(self, directory: Path, story: str, *arguments: str, **variables: str) -> None:
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"AUTOTUNE_TEST_STORY": story, "PYTHONPATH": path} | variables
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        self.bytes = b""
        self.process, self._master = pty.fork()
        if self.process == 0:
            os.chdir(directory)
            words = [sys.executable, "-m", "tests.testing.fake_cli", *arguments]
            os.execve(sys.executable, words, environment)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))

    def read_until(self, text: str) -> None:
        """Reads on until the text was written."""
        deadline_s = time.monotonic() + 60
        while text.encode() not in self.bytes:
            assert time.monotonic() < deadline_s, self.bytes[-2000:]
            assert self._read(), f"it ended before {text!r}"

    def type(self, keys: str) -> None:
        """Presses keys."""
        os.write(self._master, keys.encode())

    def hang_up(self) -> None:
        """The terminal's window is closed."""
        os.close(self._master)
        self._master = -1

    def wait(self) -> int:
        """Reads to the end and returns the exit code."""
        while self._master >= 0 and self._read():
            pass
        _, status = os.waitpid(self.process, 0)
        self.process = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Ends what is left."""
        if self.process:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        if self._master >= 0:
            os.close(self._master)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 60)
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.bytes += data
        return bool(data)


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
    with contextlib.closing(Terminal(directory, "slow", *arguments, NO_COLOR="1")) as tty:
        tty.read_until("▸ running")
        tty.type("\x03\x03")
        tty.wait()
    colours = rb"\x1b\[(?:[0-9;]*;)?(?:3[0-79]|9[0-7])m"
    assert re.search(colours, tty.bytes) is None


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"CI": "1"}])
def test_a_terminal_that_cannot_repaint_gets_lines(
    directory: Path, variables: dict[str, str]
) -> None:
    arguments = ("tune", "--demo", "--name", "one")
    with contextlib.closing(Terminal(directory, "good", *arguments, **variables)) as tty:
        assert tty.wait() == 0
    text = tty.bytes.decode().replace("\r\n", "\n")
    assert "00:00 run one started\n" in text
    assert "\x1b" not in text
    assert "\r" not in text
