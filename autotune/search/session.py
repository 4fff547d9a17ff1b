"""One engine's hold on a run: emits events, listens to requests, watches the budget."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Literal

import psutil

from autotune.control import take
from autotune.errors import ExitCode
from autotune.events import Event, HoldChanged, NoteAdded, Record, TrialProgressed, WarningRaised
from autotune.journal import Journal
from autotune.run_directory import RunDirectory

StopKind = Literal["none", "after_trial", "now"]
POLL_INTERVAL_S = 0.1

_EXIT_CODES = {
    "SIGINT": ExitCode.INTERRUPTED,
    "SIGTERM": ExitCode.TERMINATED,
    "SIGHUP": ExitCode.HANGUP,
}


class Session:
    """What every part of the engine shares while it works on a run.

    Args:
        run: The run's directory.
        journal: Opened for writing.
        seconds: Wall time that may be spent, from now on.
        parent_process: A process without which the engine must not go on.
        on_event: Is told of every event but progress, once it is on disk.
    """

    def __init__(
        self,
        run: RunDirectory,
        journal: Journal,
        *,
        seconds: float,
        parent_process: int | None = None,
        on_event: Callable[[Record], None] | None = None,
    ) -> None:
        self.run = run
        self.journal = journal
        self.start_s = time.monotonic()
        self.deadline_s = self.start_s + seconds
        self.held = False
        self.stop: StopKind = "none"
        self.stopped_by = ""
        self.in_trial = False
        self.trial_stop_requested = False
        self._on_event = on_event
        self._has_parent, self._parent = _process(parent_process)
        self._next_poll_s = 0.0

    def emit(self, event: Event) -> None:
        """Writes an event to the journal; it is on disk when this returns."""
        record = self.journal.append(event)
        if self._on_event is not None and not isinstance(event, TrialProgressed):
            self._on_event(record)

    def warn(self, cause: str, remedy: str | None = None) -> None:
        """Tells the user something without ending anything."""
        self.emit(WarningRaised(cause=cause, remedy=remedy))

    @property
    def remaining_s(self) -> float:
        """Seconds of the budget that are left; negative when it is overdrawn."""
        return self.deadline_s - time.monotonic()

    def listen(self) -> None:
        """Takes waiting requests; cheap enough to be called many times a second."""
        now_s = time.monotonic()
        if now_s < self._next_poll_s:
            return
        self._next_poll_s = now_s + POLL_INTERVAL_S
        for request in take(self.run.control):
            match request.verb:
                case "hold" | "resume":
                    held = request.verb == "hold"
                    if held != self.held:
                        self.held = held
                        self.emit(HoldChanged(held=held))
                case "stop_trial":
                    self.trial_stop_requested = self.in_trial
                case "stop":
                    self.request_stop("after_trial", request.text)
                case "stop_now":
                    self.request_stop("now", request.text)
                case "note":
                    self.emit(NoteAdded(text=request.text))
        if self._has_parent and not _is_running(self._parent):
            self.request_stop("now", "the calling process ended")

    def request_stop(self, kind: StopKind, by: str) -> None:
        """Ends the run after the running trial, or now."""
        if self.stop != "now":
            self.stop = kind
            self.stopped_by = by or self.stopped_by or "request"

    def why_end_now(self) -> str | None:
        """A reason to end the whole run this moment, or None."""
        self.listen()
        return f"Stopped by {self.stopped_by}." if self.stop == "now" else None

    def why_stop_now(self) -> str | None:
        """A reason to end what runs this moment, or None."""
        reason = self.why_end_now()
        if reason is not None:
            return reason
        if self.trial_stop_requested:
            return "Stopped by request; the run goes on."
        return None

    def should_end(self) -> bool:
        """Whether no further trial should be started. Waits while the run is held."""
        self.listen()
        while self.held and self.stop == "none":
            time.sleep(POLL_INTERVAL_S)
            # Time on hold is the user's, not the budget's.
            self.deadline_s += POLL_INTERVAL_S
            self.listen()
        return self.is_stopped()

    def is_stopped(self) -> bool:
        """Whether somebody asked the run to end."""
        return self.stop != "none"

    @property
    def stop_exit_code(self) -> ExitCode:
        """The exit code of a run that was stopped."""
        return _EXIT_CODES.get(self.stopped_by, ExitCode.INTERRUPTED)

    def handle_signals(self) -> None:
        """Ends the run in order when the engine itself is signalled."""

        def handler(number: int, frame: FrameType | None) -> None:
            self.request_stop("now", signal.Signals(number).name)

        for name in ("SIGTERM", "SIGHUP", "SIGINT"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), handler)


def _process(number: int | None) -> tuple[bool, psutil.Process | None]:
    """Whether there is somebody to be watched, and who; None where he is gone already."""
    if number is None or number == os.getpid():
        return False, None
    try:
        return True, psutil.Process(number)
    except psutil.NoSuchProcess:
        return True, None


def _is_running(process: psutil.Process | None) -> bool:
    if process is None:
        return False
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
