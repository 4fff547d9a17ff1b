"""Between files and the UI: threads that look, and messages that say what they saw.

Files of a run are followed nowhere else, so a slow file system never holds up a key. The threads
write nothing, and may be left behind at any moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from textual.message import Message

from autotune.display.quiet import is_quiet
from autotune.run_directory import RunDirectory
from tui.log_reader import LogNow, LogReader
from tui.run_now import RunNow, RunReader

POLL_S = 0.25
"""How often to look for news."""
QUIET_POLL_S = 1.0
"""How often to look while a trial's speed is measured on the processor that draws."""
LOG_POLL_S = 0.5

Post = Callable[[Message], object]
"""Takes a message from another thread, as `App.post_message` does."""
SeenT = TypeVar("SeenT")


class Watch(Generic[SeenT]):
    """A thread that looks again and again until it is closed.

    Args:
        look: Looks once; None where there is nothing new.
        tell: Is given what was seen, on the thread.
        pause_s: How long to wait after a look, given what it saw.
    """

    def __init__(
        self,
        look: Callable[[], SeenT | None],
        tell: Callable[[SeenT], object],
        pause_s: Callable[[SeenT | None], float],
    ) -> None:
        self._look = look
        self._tell = tell
        self._pause_s = pause_s
        self._closed = False
        self._hurry = threading.Event()
        # A file system that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._watch, name="watch-files", daemon=True)

    def open(self) -> None:
        """Begins to look."""
        self._thread.start()

    def close(self) -> None:
        """Ends without waiting."""
        self._closed = True
        self._hurry.set()

    def look_now(self) -> None:
        """Looks at once, as after a request to the engine."""
        self._hurry.set()

    def _watch(self) -> None:
        while not self._closed:
            seen = self._look()
            if seen is not None and not self._closed:
                try:
                    self._tell(seen)
                except RuntimeError:
                    # Whoever listened has closed in this very moment, and its event loop with it.
                    return
            self._hurry.wait(self._pause_s(seen))
            self._hurry.clear()


class RunChanged(Message):
    """The run is another one than before. Only the last of several waiting ones is handled.

    Nothing is lost by that, since each holds all that is known.
    """

    def __init__(self, now: RunNow) -> None:
        super().__init__()
        self.now = now

    def can_replace(self, message: Message) -> bool:
        """Whether a later one may stand for this one, which is still waiting."""
        return isinstance(message, RunChanged) and message.now.directory == self.now.directory


class LogChanged(Message):
    """A log has grown. Only the last of several waiting ones is handled."""

    def __init__(self, path: Path, now: LogNow) -> None:
        super().__init__()
        self.path = path
        self.now = now

    def can_replace(self, message: Message) -> bool:
        """Whether a later one may stand for this one, which is still waiting."""
        return isinstance(message, LogChanged) and message.path == self.path


def watch_run(directory: RunDirectory, post: Post) -> Watch[RunNow]:
    """Follows a run; `post` gets a `RunChanged` whenever it changed."""
    reader = RunReader(directory)

    def pause_s(seen: RunNow | None) -> float:
        if seen is not None and not seen.is_read:
            # More is waiting; a moment for whoever wants the interpreter.
            return 0.001
        return QUIET_POLL_S if is_quiet(reader.now.view) else POLL_S

    def look() -> RunNow | None:
        try:
            return reader.look()
        except Exception as error:  # noqa: BLE001 - a thread that ends would leave an old picture
            return reader.give_up(error)

    return Watch(look, lambda now: post(RunChanged(now)), pause_s)


def watch_log(path: Path, post: Post) -> Watch[LogNow]:
    """Follows a log; `post` gets a `LogChanged` whenever it grew."""
    reader = LogReader(path)
    return Watch(
        reader.look,
        lambda now: post(LogChanged(path, now)),
        # One that never stops to grow is no reason to look all the time.
        lambda seen: 0.01 if reader.has_more else LOG_POLL_S,
    )
