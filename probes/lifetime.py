"""How a process ends: with its parent, or at once."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
from typing import NoReturn

_SET_PARENT_DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of prctl(2)."""

LEASH = (
    "import ctypes, os, signal, sys; "
    f"ctypes.CDLL(None).prctl({_SET_PARENT_DEATH_SIGNAL}, int(signal.SIGKILL)); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)
"""Program of a bare Python: `PARENT COMMAND…` becomes the command, which ends with the parent."""


def die_with_parent(parent: int | None = None) -> None:
    """Asks the kernel to end this process with its parent; elsewhere the channel's end does.

    To the kernel the parent is the thread that started this process.

    Args:
        parent: Id of the parent, where it is known: it may be gone already.
    """
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError):
        ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def leashed(command: list[str], parent: int) -> list[str]:
    """A command that ends with its parent, for a launcher that starts it without asking us.

    Args:
        command: The program's path and its arguments; it keeps its process id.
        parent: Id of the process that will start it.
    """
    if not sys.platform.startswith("linux"):
        return command
    return [sys.executable, "-I", "-S", "-c", LEASH, str(parent), *command]


def end_at_once(code: int) -> NoReturn:
    """Ends this process without tearing Python down: exit handlers run, what it printed is out.

    Gloo's threads drop the tensors of a collective in their own time, also after the group was
    taken down. One that comes to it while Python is being torn down aborts the process, and a rank
    that did all it had to would be taken for one that failed.

    Args:
        code: Exit code of the process.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
