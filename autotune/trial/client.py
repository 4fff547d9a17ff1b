"""The engine's side of a worker: start it, ask it, watch it, end it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from autotune.errors import AutotuneError
from autotune.outcome import Failed, OutOfMemory, Stopped, TimedOut
from autotune.trial.failure import outcome_of_exit
from autotune.trial.logs import end_of, tail
from autotune.trial.options import WorkerOptions
from autotune.trial.protocol import (
    AwaitBeside,
    CannotLoad,
    Command,
    Envelope,
    Progress,
    Ready,
    Reply,
    StartBeside,
    envelope_adapter,
)
from probes.kills import KillWatch

POLL_S = 0.05
GRACE_S = 5.0


class WorkerDiedError(AutotuneError):
    """A worker ended before it had loaded its workload."""


class Worker:
    """One worker process. Not thread-safe; close it, or use it as a context manager.

    Args:
        options: What it loads and how it isolates measurements.
        environment: Its whole environment.
        log: File for what it prints outside of trials.
    """

    grace_s = 0.0
    """What is waited beyond a command's time limit for whoever keeps to it himself."""

    def __init__(self, options: WorkerOptions, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._printed: list[tuple[Path, int]] = [(log, end_of(log))]
        """Logs of this worker and where its own lines begin, the latest last."""
        self._is_closed = False
        self._kills = KillWatch()
        self._number = 0
        self._buffer = b""
        self.ready: Ready | None = None
        self.is_used = False
        """Whether any command was given that runs the workload here."""
        with log.open("ab") as output:
            self._socket, self._process = self._start(options, environment, output)
        self._socket.setblocking(False)

    def _start(
        self, options: WorkerOptions, environment: Mapping[str, str], output: BinaryIO
    ) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """Our end of the channel, and the process at the other end of it."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [
                    sys.executable,
                    # Nothing in the user's directory may stand in for a module of ours.
                    "-P",
                    "-m",
                    "autotune.trial.worker",
                    str(theirs.fileno()),
                    json.dumps(asdict(options)),
                ],
                env=dict(environment),
                cwd=options.working_directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                # A process group of its own: one signal ends the worker and all its forks.
                start_new_session=True,
            )
        return ours, process

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return not self._is_closed and self._process.poll() is None

    def wait_ready(
        self, *, time_limit_s: float, should_stop: Callable[[], str | None] = lambda: None
    ) -> Ready | Stopped:
        """Waits until the workload is loaded.

        Raises:
            AutotuneError: It cannot be loaded; the class says whose fault it is.
            WorkerDiedError: The process ended or did not answer in time.
        """
        reply = self._await(time_limit_s, None, should_stop)
        match reply:
            case Ready():
                self.ready = reply
                return reply
            case CannotLoad():
                self.close()
                raise reply.exception
            case Stopped():
                return reply
            case TimedOut():
                raise WorkerDiedError(
                    f"Loading the workload took longer than {time_limit_s:.0f} s.",
                    f"Its log is {self._log}.",
                )
            case OutOfMemory():
                self.close()
                if not reply.is_certain:
                    raise WorkerDiedError(
                        f"The process that was loading the workload was killed: {reply.cause}",
                        "Free memory on this machine, or choose a smaller model; --resume goes on "
                        "with every finished trial.",
                    )
                raise WorkerDiedError(
                    f"Memory did not suffice to load the workload. {reply.cause}",
                    "Choose a smaller model, or free memory on this machine.",
                )
            case Failed(is_killed=True):
                self.close()
                raise WorkerDiedError(
                    "The process that was loading the workload was killed from outside, and not "
                    "for its memory.",
                    "Find out who ended it; --resume goes on with every finished trial.",
                )
            case Failed():
                self.close()
                raise WorkerDiedError(reply.cause, reply.remedy or f"Its log is {self._log}.")
            case _:
                raise WorkerDiedError(f"Unexpected answer of the worker: {reply.kind}.")

    def ask(
        self,
        command: Command,
        *,
        log: Path | None,
        time_limit_s: float,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], str | None] = lambda: None,
        meeting: str | None = None,
    ) -> Reply | TimedOut | Stopped:
        """Gives a command and waits for its reply.

        After `TimedOut`, `Stopped`, or a reply from a worker that is no longer alive, the worker
        must be replaced; it is closed already.

        Args:
            command: What to do.
            log: Where what is printed during the command goes.
            time_limit_s: After this the worker is ended.
            on_progress: Called with each progress message.
            should_stop: Asked many times a second; a text ends the worker and is the reason.
            meeting: For one of several ranks, the name under which they meet for this command.
        """
        self.is_used = self.is_used or not isinstance(command, StartBeside | AwaitBeside)
        self._kills = KillWatch()
        self._number += 1
        envelope = Envelope(
            body=command,
            log=str(log) if log is not None else None,
            number=self._number,
            time_limit_s=time_limit_s,
            meeting=meeting,
        )
        if log is not None:
            self._printed = [self._printed[0], (log, end_of(log))]
        try:
            self._socket.setblocking(True)
            self._socket.sendall(envelope_adapter().dump_json(envelope) + b"\n")
            self._socket.setblocking(False)
        except OSError:
            return self._death()
        return self._await(time_limit_s + self.grace_s, on_progress, should_stop)

    def _await(
        self,
        time_limit_s: float,
        on_progress: Callable[[Progress], None] | None,
        should_stop: Callable[[], str | None],
    ) -> Reply | TimedOut | Stopped:
        deadline_s = time.monotonic() + time_limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while True:
                while b"\n" in self._buffer:
                    line, self._buffer = self._buffer.split(b"\n", 1)
                    envelope = envelope_adapter().validate_json(line)
                    if envelope.number != self._number:
                        # A fork that dies after its reply is answered for a second time.
                        continue
                    body = envelope.body
                    if not isinstance(body, Progress):
                        if envelope.is_last:
                            self.close()
                        return body  # type: ignore[return-value]
                    if on_progress is not None:
                        on_progress(body)
                reason = should_stop()
                if reason is not None:
                    self.close()
                    return Stopped(cause=reason)
                if time.monotonic() > deadline_s:
                    self.close()
                    return TimedOut(
                        limit_s=time_limit_s,
                        cause=f"No answer within {time_limit_s:.0f} s; the worker was ended.",
                    )
                # A process that the worker left behind may hold its end of the channel open.
                has_ended = not self.is_alive
                if selector.select(POLL_S):
                    try:
                        data = self._socket.recv(1 << 16)
                    except BlockingIOError:
                        continue
                    except OSError:
                        data = b""
                    if not data:
                        return self._death()
                    self._buffer += data
                elif has_ended:
                    return self._death()

    def _death(self) -> OutOfMemory | Failed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        code = self._process.poll()
        self.close()
        said = next(filter(None, (tail(*place) for place in reversed(self._printed))), "")
        return outcome_of_exit(code if code is not None else 1, said, sign=self._kills.sign())

    def close(self) -> None:
        """Ends the worker and everything it started, and reaps it."""
        if self._is_closed:
            return
        self._is_closed = True
        self._socket.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
