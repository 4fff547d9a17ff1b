"""What a child process sees to for itself: its end, its output, its scratch files."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SCRATCH_PREFIX = "trial-"


def descriptor_of(process: int) -> int | None:
    """A descriptor that becomes readable when the process ends, where the system offers one."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return None


@contextlib.contextmanager
def redirected_output(log: Path | None) -> Iterator[None]:
    """Sends stdout and stderr of this process and its libraries to a file.

    Where the file cannot be written, they go where they went before, and that is said there.
    """
    file = _opened(log)
    if file is None:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        os.close(saved[0])
        os.close(saved[1])


def _opened(log: Path | None) -> int | None:
    if log is None:
        return None
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        sys.stderr.write(f"The log {log} cannot be written: {error.strerror}.\n")
        return None


@contextlib.contextmanager
def scratch_directory(parent: str) -> Iterator[str]:
    """A directory for what training libraries insist on writing; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=parent) as directory:
        yield directory


def forget_scratch(parent: Path) -> None:
    """Removes what processes that were killed have left; none may be at work there."""
    for directory in parent.glob(f"{_SCRATCH_PREFIX}*"):
        shutil.rmtree(directory, ignore_errors=True)
