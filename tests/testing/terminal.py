"""A command line on a pseudo-terminal of its own, and what it writes there."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


class Terminal:
    """The real command line over the fake engine, with a terminal of some size.

    Args:
        directory: Where it works.
        story: What the fake engine plays.
        arguments: Words of the command line.
        module: What is run instead of the command line.
        size: Columns and rows.
        variables: Environment variables.
    """

    def __init__(
        self,
        directory: Path,
        story: str,
        *arguments: str,
        module: str = "tests.testing.fake_cli",
        size: tuple[int, int] = (100, 24),
        **variables: str,
    ) -> None:
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"AUTOTUNE_TEST_STORY": story, "PYTHONPATH": path} | variables
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        self.bytes = b""
        self.process, self._master = pty.fork()
        if self.process == 0:
            os.chdir(directory)
            words = [sys.executable, "-m", module, *arguments]
            os.execve(sys.executable, words, environment)
        self.resize(size)

    def resize(self, size: tuple[int, int]) -> None:
        """Changes the size of the window, which the processes in it are told."""
        columns, rows = size
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, text: str, *, after: int = 0) -> None:
        """Reads on until the text was written; what was written before `after` does not count."""
        deadline_s = time.monotonic() + 60
        while text.encode() not in self.bytes[after:]:
            assert time.monotonic() < deadline_s, self.bytes[-2000:]
            assert self._read(), f"it ended before {text!r}: {self.bytes[-2000:]!r}"

    def read_for(self, seconds: float) -> None:
        """Reads whatever is written in that time."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            self._read(left_s)

    def type(self, keys: str) -> None:
        """Presses keys."""
        os.write(self._master, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the command line."""
        os.kill(self.process, number)

    def hang_up(self) -> None:
        """The terminal's window is closed."""
        os.close(self._master)
        self._master = -1

    def wait(self) -> int:
        """Reads to the end and returns the exit code."""
        deadline_s = time.monotonic() + 60
        while self._master >= 0 and self._read():
            assert time.monotonic() < deadline_s, self.bytes[-2000:]
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

    def _read(self, limit_s: float = 60.0) -> bool:
        ready, _, _ = select.select([self._master], [], [], limit_s)
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.bytes += data
        return bool(data)
