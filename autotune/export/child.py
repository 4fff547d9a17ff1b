"""Both ends of the child process in which consumers run: the caller's own process stays light.

Parent and child share one socket. The parent sends the request as one JSON line; the child
answers with any number of `{"stage": …}` lines and one `{"result": …}`. A child whose parent is
gone, or has given up, ends itself and everything it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pydantic import JsonValue

from autotune.errors import ExportError
from probes.ranks.launch import without_launch

_LOG_LINES = 12
_LOOK_S = 0.2
"""Time between two looks for a reason to stop."""


def ask(
    module: str,
    request: JsonValue,
    *,
    environment: Mapping[str, str],
    log: Path,
    time_limit_s: float,
    should_stop: Callable[[], str | None] = lambda: None,
) -> JsonValue:
    """Runs a module of ours in a fresh process and returns its result.

    Args:
        module: Run as `python -m module`; it takes its request from `Channel`.
        request: What it is asked.
        environment: Variables on top of this process's own.
        log: File that takes what the child prints; it is appended to.
        time_limit_s: After this the child is ended.
        should_stop: Asked in between; a reason ends the child.

    Raises:
        ExportError: The child died, did not answer in time, or was to stop; the cause says at
            which stage.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    ours, theirs = socket.socketpair()
    with ours, log.open("ab") as output:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                # Where this process is itself a rank of something, the child is none.
                env={**without_launch(os.environ), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                # A process group of its own: one signal ends the child and all its workers.
                start_new_session=True,
            )
        try:
            ours.sendall(json.dumps(request).encode() + b"\n")
            return _answer(ours, process, log, time_limit_s, should_stop)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def log_at(wanted: Path | None, name: str) -> Iterator[Path]:
    """The log that is wanted where it can be written, as not in a run that can only be read.

    Elsewhere it is a temporary file, which stays only where an `ExportError` names it.

    Args:
        wanted: None leaves it open.
        name: Of the temporary file.
    """
    if wanted is not None and _can_be_written(wanted):
        yield wanted
        return
    directory = Path(tempfile.mkdtemp(prefix=f"autotune-{Path(name).stem}-"))
    try:
        yield directory / name
    except ExportError:
        raise
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)


def _can_be_written(file: Path) -> bool:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("ab").close()
    except OSError:
        return False
    return True


def _answer(
    channel: socket.socket,
    process: subprocess.Popen[bytes],
    log: Path,
    time_limit_s: float,
    should_stop: Callable[[], str | None],
) -> JsonValue:
    deadline_s = time.monotonic() + time_limit_s
    stage = "starting"
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while (remaining_s := deadline_s - time.monotonic()) > 0:
            is_ready = selector.select(min(remaining_s, _LOOK_S))
            reason = should_stop()
            if reason is not None:
                raise ExportError(f"{reason} It came while {stage}.")
            if not is_ready:
                continue
            try:
                data = channel.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5.0)
                raise ExportError(
                    f"The process for {stage} {_ending(process.poll())}.{_tail(log)}",
                    f"Its log is {log}.",
                )
            buffer += data
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "result" in message:
                    result: JsonValue = message["result"]
                    return result
                stage = str(message["stage"])
    raise ExportError(
        f"The process for {stage} took longer than {time_limit_s:.0f} s and was ended.",
        f"Its log is {log}.",
    )


def _ending(code: int | None) -> str:
    if code is None:
        return "closed its channel"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _tail(log: Path) -> str:
    text = log.read_bytes()[-8192:].decode(errors="replace").strip()
    lines = text.splitlines()[-_LOG_LINES:]
    return " Its last lines:\n  " + "\n  ".join(lines) + "\n" if lines else ""


class Channel:
    """The child's end. Making it starts the watch that ends the child with its parent."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        reader = self._socket.makefile("rb")
        self.request: JsonValue = json.loads(reader.readline())
        threading.Thread(target=self._watch, name="parent watch", daemon=True).start()

    def stage(self, name: str) -> None:
        """Says what is being done, for the message in case it never ends."""
        self._send({"stage": name})

    def result(self, value: JsonValue) -> None:
        """Answers the request; nothing may be sent afterwards."""
        self._send({"result": value})

    def _send(self, message: dict[str, JsonValue]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _watch(self) -> None:
        # The parent never sends a second time: anything that can be read is its end.
        with contextlib.suppress(OSError):
            self._socket.recv(1)
        os.killpg(os.getpgrp(), signal.SIGKILL)
