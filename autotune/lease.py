"""Who runs the engine of a run: host, process and the process's start time."""

from __future__ import annotations

import json
import os
import shlex
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from autotune.errors import UsageError
from autotune.run_directory import RunDirectory, write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One engine's hold on a run. A reused process number differs in its start time."""

    host: str
    process: int
    started_unix_s: float

    @property
    def is_alive(self) -> bool:
        """Whether that very process still runs. On another host: assumed so."""
        if self.host != socket.gethostname():
            return True
        try:
            process = psutil.Process(self.process)
            is_same = abs(process.create_time() - self.started_unix_s) < 1.0
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def mine() -> Lease:
    """The lease of this process."""
    return Lease(
        host=socket.gethostname(),
        process=os.getpid(),
        started_unix_s=psutil.Process().create_time(),
    )


def read(path: Path) -> Lease | None:
    """The lease in a file; None where there is none that can be read."""
    try:
        return Lease(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def take(path: Path) -> Lease:
    """Takes the run for this process.

    Raises:
        UsageError: A living engine holds it.
    """
    held = read(path)
    own = mine()
    if held is not None and held != own and held.is_alive:
        raise taken(held, "The run", path)
    write_json(path, asdict(own))
    return own


def taken(held: Lease, what: str, path: Path) -> UsageError:
    """The error that tells who works on a run.

    Args:
        held: Its lease.
        what: The run, as the sentence begins.
        path: Where the lease is.
    """
    run = shlex.quote(RunDirectory(path.parent).called)
    remedy = f"Watch it (`autotune tui {run}`), stop it, or start another run under another --name."
    if held.host != socket.gethostname():
        remedy += f" If that machine or its engine is gone, delete {path}."
    return UsageError(
        f"{what} is already being worked on by process {held.process} on {held.host}.", remedy
    )


def release(path: Path) -> None:
    """Gives the run free, if this process holds it."""
    if read(path) == mine():
        path.unlink(missing_ok=True)
