"""Runs a module of this package in a child process that cannot outlive its parent.

The child speaks lines of text on a channel of its own: whatever else prints to its stdout ends up
in its stderr, which is kept for the message about a child that broke.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

_NOT_STARTED = 127
"""What a shell answers for a program that it cannot start."""

_POLL_S = 0.1

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from probes.child import serve; serve(sys.argv[2], sys.argv[3:])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildResult:
    """How a child ended and what it said."""

    lines: tuple[str, ...]
    returncode: int
    """Negative for the signal that ended it."""
    is_timed_out: bool
    last_error: str
    """Last line of its stderr; empty if it printed none."""

    @property
    def was_killed(self) -> bool:
        """Somebody else than its parent ended it at once, as the kernel does for want of memory."""
        return self.returncode in (-9, 137) and not self.is_timed_out


def run_module(
    module: str,
    arguments: Sequence[str],
    *,
    time_limit_s: float,
    on_line: Callable[[str], None] | None = None,
    on_wait: Callable[[], None] = lambda: None,
) -> ChildResult:
    """Runs `main(arguments, out)` of a module in a child process and waits for it.

    The child sees the import path and the environment of this process. It is ended at the time
    limit, with this process, and when this call is left by an exception.

    Args:
        module: Its full name.
        arguments: What `main` is given.
        time_limit_s: Time to run.
        on_line: Is told every line as it comes.
        on_wait: Called several times a second in between; what it raises leaves this call.

    Returns:
        How it ended; code 127 for a child that could not be started.
    """
    command = [sys.executable, "-P", "-c", _BOOT, json.dumps(sys.path), module, *arguments]
    deadline_s = time.monotonic() + time_limit_s
    lines: list[str] = []
    is_timed_out = False
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )
        except OSError as error:
            return ChildResult(
                lines=(), returncode=_NOT_STARTED, is_timed_out=False, last_error=str(error)
            )
        try:
            for line in _lines(process, deadline_s, on_wait):
                if line is None:
                    is_timed_out = True
                    break
                lines.append(line)
                if on_line is not None:
                    on_line(line)
            if not is_timed_out:
                try:
                    process.wait(timeout=max(0.1, deadline_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    is_timed_out = True
        finally:
            _end(process)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
    return ChildResult(
        lines=tuple(lines),
        returncode=-9 if process.returncode is None else process.returncode,
        is_timed_out=is_timed_out,
        last_error=said[-1].strip() if said else "",
    )


def serve(module: str, arguments: list[str]) -> None:
    """The child's first function: leaves with its parent, and keeps stdout for the channel."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    code = importlib.import_module(module).main(arguments, channel)
    channel.close()
    sys.exit(code)


def _leave_with_parent() -> None:
    # The parent writes nothing: reading ends when its end of the pipe is gone, and so does it.
    with contextlib.suppress(OSError, ValueError):
        os.read(0, 1)
    os._exit(1)


def _lines(
    process: subprocess.Popen[str], deadline_s: float, on_wait: Callable[[], None]
) -> Iterator[str | None]:
    """Lines of the child as they come, ended by None where the time runs out before its end."""
    found: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    stream = process.stdout
    assert stream is not None
    threading.Thread(target=_read, args=(stream, found), daemon=True).start()
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            line = found.get(timeout=max(0.0, min(_POLL_S, left_s)))
        except queue.Empty:
            if left_s <= _POLL_S:
                yield None
                return
            on_wait()
            continue
        if line is None:
            return
        yield line


def _read(stream: IO[str], found: queue.SimpleQueue[str | None]) -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in stream:
            found.put(line.rstrip("\n"))
    found.put(None)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        # A child that hangs inside a driver cannot be ended; nobody waits for it.
        process.wait(timeout=5)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
