"""The terminal UI begins to load while the command line is being read: each takes as long.

It waits for its words on a pipe, paints nothing before they come, and ends by itself where nobody
sends any, as when this process is killed meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

from autotune.cli.startup import check_installation
from autotune.display import output
from autotune.errors import AutotuneError

COMMAND = "tui"


class Ahead:
    """A UI that is loading.

    Args:
        command: What starts it; the number of the pipe's end that it reads comes behind.
    """

    def __init__(self, command: Sequence[str]) -> None:
        theirs, self._ours = os.pipe()
        try:
            self._child: subprocess.Popen[bytes] | None = subprocess.Popen(
                [*command, str(theirs)], pass_fds=(theirs,)
            )
        finally:
            os.close(theirs)

    def take(self, words: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """Tells it what to show; None where it is gone."""
        child = self._child
        try:
            with os.fdopen(self._ours, "w", encoding="utf-8") as pipe:
                json.dump(list(words), pipe)
        except OSError:
            self.drop()
            return None
        self._child = None
        return child

    def drop(self) -> None:
        """Ends it, where nobody took it."""
        if self._child is not None:
            with contextlib.suppress(OSError):
                os.close(self._ours)
            self._child.kill()
            self._child.wait()
            self._child = None


@contextlib.contextmanager
def begun_for(words: Sequence[str]) -> Iterator[Ahead | None]:
    """Begins to load the UI where these words ask for it; ends it where it was not needed."""
    if words[:1] != [COMMAND] or {"-h", "--help"} & {*words} or not output.can_take_screen():
        yield None
        return
    try:
        check_installation()
        ahead = Ahead([sys.executable, "-P", "-m", "tui", "--words-from"])
    except (AutotuneError, OSError):
        # Whoever reads the command line meets the same, and has words for it.
        yield None
        return
    try:
        yield ahead
    finally:
        ahead.drop()
