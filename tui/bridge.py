"""Between the run directory and the UI: a thread that looks, and messages that say what it saw.

The thread is the only place where files of a run are followed, so a slow file system never holds
up a key. It writes nothing; it may be left behind at any moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from textual.message import Message

from autotune.display.watch import is_quiet
from autotune.run_directory import RunDirectory
from tui.run_now import RunNow, RunReader

POLL_S = 0.25
"""How often to look for news."""
QUIET_POLL_S = 1.0
"""How often to look while a trial's speed is measured on the processor that draws."""


class RunChanged(Message):
    """The run is another one than before. Only the last of several waiting ones is handled.

    Nothing is lost by that, since each holds all that is known.
    """

    def __init__(self, now: RunNow) -> None:
        super().__init__()
        self.now = now

    def can_replace(self, message: Message) -> bool:
        """Whether this one may stand for an earlier one that is still waiting."""
        return isinstance(message, RunChanged)


class Bridge:
    """Follows one run until it is closed.

    Args:
        directory: The run.
        post: Takes messages from another thread, as `App.post_message` does.
    """

    def __init__(self, directory: RunDirectory, post: Callable[[Message], object]) -> None:
        self._reader = RunReader(directory)
        self._post = post
        self._closed = threading.Event()
        self._hurry = threading.Event()
        # A file system that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._follow, name="follow-run", daemon=True)

    def open(self) -> None:
        """Begins to follow."""
        self._thread.start()

    def close(self) -> None:
        """Ends without waiting; a last message may still arrive."""
        self._closed.set()
        self._hurry.set()

    def look_now(self) -> None:
        """Looks at once, as after a request to the engine."""
        self._hurry.set()

    def _follow(self) -> None:
        while not self._closed.is_set():
            now = self._reader.look()
            if now is not None and not self._closed.is_set():
                self._post(RunChanged(now))
            if now is not None and not now.is_read:
                # More is waiting; a moment for whoever wants the interpreter.
                self._closed.wait(0.001)
                continue
            self._hurry.wait(QUIET_POLL_S if is_quiet(self._reader.now.view) else POLL_S)
            self._hurry.clear()
