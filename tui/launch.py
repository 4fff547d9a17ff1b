"""From a run directory to an exit code: the terminal is tested first and restored in any case."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.display import output
from autotune.errors import UsageError
from autotune.run_directory import RunDirectory
from tui.keys.key import Key
from tui.themes import Look

if TYPE_CHECKING:
    from tui.keymap import KeyMap
    from tui.setup.form import JobForm

LAST_RESORT_S = 15.0
"""How long a UI may take to end: its terminal may be gone by then, or a file system hang. It is
longer than its children may take to tidy up."""

_LOCAL_MODES = 3
"""Where `tcgetattr` keeps what the terminal makes of its keys."""
_DETACHING = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the UI looks, and for whom it runs."""

    look: Look = "dark"
    ascii_only: bool = False
    mouse: bool = True
    owns_run: bool = False
    """It belongs to the command that started the run."""
    form: JobForm | None = None
    """What setup begins with."""
    run_root: Path = Path("autotune-runs")
    """Where runs are kept."""
    keymap: KeyMap | None = None
    """Keys that a settings file gives."""


def launch(directory: RunDirectory | None, options: Options) -> int:
    """Runs the UI to its end and returns the exit code of the process.

    Raises:
        UsageError: There is no terminal to show it on, or a settings file gives impossible keys.
    """
    fault = output.why_no_screen(
        "Use `autotune show RUN --follow`, or `autotune tune` without --tui."
    )
    if fault is not None:
        raise fault
    from tui import bindings

    if not _writes_utf8():
        options = replace(options, ascii_only=True)
    table, problem = _keys(options)
    with bindings.in_force(bindings.spelled_out(table) if options.ascii_only else table):
        return _show(directory, options, problem)


def _keys(options: Options) -> tuple[tuple[Key, ...], str]:
    """The keys to be in force, and what is wrong with those of the settings file."""
    from tui import bindings

    if options.keymap is None:
        return bindings.TABLE, ""
    try:
        return options.keymap.table(), ""
    except UsageError as error:
        if not options.owns_run:
            raise
        # The run goes on already: whoever started it should see it all the same.
        return bindings.TABLE, f"{error.cause} {error.remedy or ''} The usual keys hold."


def _show(directory: RunDirectory | None, options: Options, problem: str) -> int:
    from tui.app import AutotuneApp

    app = AutotuneApp(
        directory,
        look=options.look,
        ascii_only=options.ascii_only,
        owns_run=options.owns_run,
        form=options.form,
        run_root=options.run_root,
        problem=problem,
    )
    signalled: list[signal.Signals] = []

    async def run() -> int:
        loop = asyncio.get_running_loop()

        def detach(number: signal.Signals) -> None:
            signalled.append(number)
            _end_without_fail(128 + number)
            app.detach(128 + number)

        for number in _DETACHING:
            loop.add_signal_handler(number, detach, number)
        loop.add_signal_handler(signal.SIGINT, app.call_later, app.action_interrupt)
        result = await app.run_async(mouse=options.mouse)
        _hear_no_interrupt(loop)
        code = result if result is not None else app.return_code or 1
        _end_without_fail(128 + signalled[0] if signalled else code)
        return code

    with _no_key_is_a_signal():
        code = asyncio.run(run())
        if signalled:
            code = 128 + signalled[0]
        # It knows how a run is worded, for which the first picture should not wait.
        from tui.last_words import as_known, last_words, of_draft, of_writing

        for line in last_words(as_known(app.latest), code, ascii_only=options.ascii_only):
            output.data(line)
        if app.writing is not None:
            for line in of_writing(app.writing, ascii_only=options.ascii_only):
                output.data(line)
        if app.draft is not None:
            told = of_draft(
                app.draft,
                run_root=app.run_root,
                is_starting=app.is_starting,
                ascii_only=options.ascii_only,
            )
            for line in told:
                output.data(line)
    return code


@contextlib.contextmanager
def _no_key_is_a_signal() -> Iterator[None]:
    """Keeps the terminal from acting on keys, also once Textual has given it back.

    A ^c that is pressed again while the UI leaves would be echoed into the last words, and would
    throw away what of them is still on its way.
    """
    try:
        descriptor = sys.__stdin__.fileno()  # type: ignore[union-attr]
        before = termios.tcgetattr(descriptor)
    except (termios.error, OSError, ValueError, AttributeError):
        # No terminal, as behind a browser.
        yield
        return
    quiet = [*before]
    quiet[_LOCAL_MODES] &= ~(termios.ISIG | termios.ECHO)
    try:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
        yield
    finally:
        with contextlib.suppress(termios.error):
            # What was pressed meanwhile was meant for the UI.
            termios.tcflush(descriptor, termios.TCIFLUSH)
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


def _hear_no_interrupt(loop: asyncio.AbstractEventLoop) -> None:
    """What is left to do is to say the last words: an impatient second ^c must not cut them off."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    loop.remove_signal_handler(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _end_without_fail(code: int) -> None:
    """A terminal that hung up, or a file system that hangs, may keep threads waiting for ever."""
    timer = threading.Timer(LAST_RESORT_S, os._exit, (code,))
    timer.daemon = True
    timer.start()


def _writes_utf8() -> bool:
    encoding = getattr(sys.__stderr__, "encoding", None) or ""
    return encoding.lower().replace("-", "") == "utf8"
