"""What a child process sees to for itself: its end, its output, its scratch files."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


def descriptor_of(process: int) -> int | None:
    """A descriptor that becomes readable when the process ends, where the system offers one."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return None


@contextlib.contextmanager
def redirected_output(log: Path | None) -> Iterator[None]:
    """Sends stdout and stderr of this process and its libraries to a file, stdin from nowhere."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
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


@contextlib.contextmanager
def scratch_directory(parent: str) -> Iterator[str]:
    """A directory for what training libraries insist on writing; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="trial-", dir=parent) as directory:
        yield directory
