"""The terminal UI as a child in the foreground: it gets the terminal, this process waits.

The UI is a package of its own above this one and is never imported. Signals that reach this process
are passed on to it; whatever becomes of it, the terminal is left as it was found.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from types import FrameType

from autotune.cli.declare import Invocation
from autotune.display import output
from autotune.run_directory import RunDirectory

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOCAL_MODES = 3
"""Where `tcgetattr` keeps what the terminal makes of its keys."""
_RESTORE = (
    "\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l"  # no mouse
    "\x1b[?2004l\x1b[?1004l\x1b[<u"  # plain pasting, focus and keys
    "\x1b[?1049l\x1b[?7h\x1b[?25h\x1b[0m"  # first screen, wrapping, cursor, no colour
)


def show(
    directory: RunDirectory | None,
    *,
    owns_run: bool = False,
    look: Sequence[str] = (),
    invocation: Invocation | None = None,
    waiting: Sequence[signal.Signals] = (),
    silent: bool = False,
) -> int:
    """Shows a run until its reader leaves, and returns the UI's exit code.

    Args:
        directory: The run; None begins with setup.
        owns_run: Whether this command started the run, so that its exit code is the run's.
        look: Options of the UI.
        invocation: The call: its settings file may give keys, and a UI may be loading already.
        waiting: Signals that arrived before, and that nobody has acted on.
        silent: Whether stdout belongs to this process alone.
    """
    words = [*look]
    if invocation is not None and invocation.keys:
        keymap = {"source": str(invocation.settings_file), "keys": dict(invocation.keys)}
        words += ["--keymap", json.dumps(keymap)]
    words += ["--owns-run"] if owns_run else []
    words += [str(directory.path)] if directory is not None else []
    ahead = invocation.ahead if invocation is not None else None
    with _terminal_kept():
        child = (ahead.take(words) if ahead is not None else None) or subprocess.Popen(
            [sys.executable, "-P", "-m", "tui", *words],
            stdout=subprocess.DEVNULL if silent else None,
        )
        for number in waiting:
            child.send_signal(number)
        with _passing_on(child):
            status = child.wait()
        if status < 0:
            _write_restore()
    if status < 0:
        name = signal.Signals(-status).name
        output.talk(f"The terminal UI was ended by {name}.")
        if directory is not None:
            run = shlex.quote(str(directory.path))
            output.talk(f"The run is as it was. Look again: autotune tui {run}")
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _passing_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    def pass_on(number: int, frame: FrameType | None) -> None:
        # What a terminal sends by itself, it sends to the child as well.
        if number != signal.SIGINT or not _terminal_sends_interrupts():
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminal_sends_interrupts() -> bool:
    try:
        return bool(termios.tcgetattr(sys.stdin.fileno())[_LOCAL_MODES] & termios.ISIG)
    except (termios.error, OSError, ValueError, AttributeError):
        return False


@contextlib.contextmanager
def _terminal_kept() -> Iterator[None]:
    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (termios.error, OSError, ValueError, AttributeError):
        # No terminal, as behind a browser.
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


def _write_restore() -> None:
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.__stderr__.fileno(), _RESTORE.encode())  # type: ignore[union-attr]
