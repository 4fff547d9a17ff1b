"""Follows a run to its end, shows it, and passes signals on to its engine.

The engine is a process of its own in a session of its own: what the terminal sends reaches only
the command line, which asks the engine to stop and waits until everything is saved. A command line
that is killed outright leaves the engine running to its budget.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from autotune import control, journal
from autotune.display.base import Display
from autotune.display.quiet import is_quiet
from autotune.events import TrialProgressed
from autotune.folding import fold
from autotune.run_directory import RunDirectory
from autotune.view import RunView

QUIET_POLL_S = 0.4
"""How much longer to wait between two looks while a trial's speed is measured on a CPU."""
GRACE_S = 30.0
"""How long an engine that was asked to stop now may take to save; then it is terminated."""
LAST_GRACE_S = 15.0
"""How long a terminated engine may take; then it is killed, and loses its running trial."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Collects the signals that end a command, instead of ending it, inside a `with` block."""

    def __init__(self) -> None:
        self._waiting: list[signal.Signals] = []
        self._before: dict[signal.Signals, object] = {}
        self.last: signal.Signals | None = None
        """The last signal that arrived."""

    def take(self) -> list[signal.Signals]:
        """Signals that arrived since the last call."""
        taken, self._waiting = self._waiting, []
        return taken

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.last = signal.Signals(number)
        self._waiting.append(self.last)

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # As under nohup.
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def until_it_ends(
    run: RunDirectory,
    engine: subprocess.Popen[bytes],
    signals: Signals,
    display: Display,
    view: RunView,
) -> RunView:
    """Shows a run until its engine has ended, and stops it where a signal says so.

    Args:
        run: The run.
        engine: Its engine, a child of this process.
        signals: Entered before the engine was started, so that none is lost.
        display: Where to show it; opened and closed here.
        view: What was known of the run before the engine started; its journal goes on from there.
    """
    stopper = _Stopper(run, engine, display)
    return _follow(
        run,
        display,
        view,
        is_over=lambda: engine.poll() is not None,
        look_around=lambda: stopper.handle(signals.take()),
    )


def from_outside(
    run: RunDirectory,
    signals: Signals,
    display: Display,
    view: RunView,
    *,
    is_alive: Callable[[], bool],
) -> RunView:
    """Shows a run that another process started; a signal ends the watching, not the run."""
    return _follow(
        run,
        display,
        view,
        is_over=lambda: signals.last is not None or not is_alive(),
        look_around=lambda: None,
    )


def _follow(
    run: RunDirectory,
    display: Display,
    view: RunView,
    *,
    is_over: Callable[[], bool],
    look_around: Callable[[], None],
) -> RunView:
    display.open()
    try:
        records = journal.follow(
            run.journal, run.progress, should_stop=is_over, start_seq=view.next_seq
        )
        for record in records:
            look_around()
            if record is not None:
                view = fold([record], view)
            quiet = is_quiet(view)
            if record is not None and not (quiet and isinstance(record.event, TrialProgressed)):
                display.show(record, view)
            elif not quiet:
                display.tick(view)
            else:
                time.sleep(QUIET_POLL_S)
    finally:
        display.close()
    return view


class _Stopper:
    """What the signals of one call asked of the engine so far."""

    def __init__(
        self, run: RunDirectory, engine: subprocess.Popen[bytes], display: Display
    ) -> None:
        self._run = run
        self._engine = engine
        self._display = display
        self._num_interrupts = 0
        self._stop_now_s: float | None = None
        self._terminated_s: float | None = None

    def handle(self, signals: list[signal.Signals]) -> None:
        """Passes new signals on, and loses patience with an engine that does not end."""
        for number in signals:
            if number is signal.SIGINT:
                self._num_interrupts += 1
            if number is signal.SIGINT and self._num_interrupts == 1:
                self._ask(
                    "stop",
                    number,
                    "Stopping after this trial (in a confirmation, after this measurement); "
                    "finished trials are kept. Ctrl-C again stops now.",
                )
            elif self._stop_now_s is None:
                self._stop_now_s = time.monotonic()
                self._ask("stop_now", number, "Stopping now, finished trials are kept.")
            elif self._terminated_s is None:
                self._terminate()
        now_s = time.monotonic()
        if self._terminated_s is not None:
            if now_s - self._terminated_s > LAST_GRACE_S:
                self._engine.kill()
        elif self._stop_now_s is not None and now_s - self._stop_now_s > GRACE_S:
            self._terminate()

    def _ask(self, verb: control.Verb, number: signal.Signals, told: str) -> None:
        try:
            control.send(self._run.control, verb, number.name)
        except OSError:
            # The run directory is gone, or its disk is full: a signal needs neither.
            if self._terminated_s is None:
                self._terminate()
        else:
            self._display.say(told)

    def _terminate(self) -> None:
        self._terminated_s = time.monotonic()
        self._display.say("The engine is being ended.")
        self._engine.terminate()
