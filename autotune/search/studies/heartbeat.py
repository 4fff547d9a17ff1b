"""Signs of life of engines that share a study, and how long one may be silent.

No two clocks are compared: a heartbeat is a number that goes up, and whoever waits for it measures
by its own clock how long it has not moved. Silence counts only while the one who listens could
read the storage all the time; after a time without it (the server was restarted, the machine
slept) everybody's silence starts anew, since nobody could have been heard.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from optuna.storages import RDBStorage
from optuna.trial import Trial

from autotune.search.studies.storage import ENDED_ERROR, LOST_ERRORS

BEAT = "heartbeat"
"""User attribute of a running trial: how often its engine has said that it lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often engines tell of themselves, and how long they wait for each other."""

    beat_s: float = 15.0
    """Between two heartbeats. One is a single statement of a few milliseconds."""
    grace_s: float = 120.0
    """Silence after which an engine counts as dead. Heartbeats come from a thread of their own, so
    that no trial is too long for them; eight in a row are missed before a claim is lost."""
    return_s: float = 15.0
    """Between two tries to reach a storage again that was lost."""
    retry_s: float = 1.0
    """What a storage gets that failed once, before it counts as lost."""


class Listener:
    """Knows for how long each running trial has been silent.

    Args:
        grace_s: Silence after which a trial's engine counts as dead.
        clock: Seconds, going up.
    """

    def __init__(self, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s = grace_s
        self._clock = clock
        self._last_contact_s = clock()
        self._heard_s: dict[tuple[int, object], float] = {}

    def reached(self) -> None:
        """Takes note that the storage answered just now. Any thread may call it."""
        now_s = self._clock()
        if now_s - self._last_contact_s > self._grace_s / 2:
            self._heard_s.clear()
        self._last_contact_s = now_s

    def is_silent(self, number: int, beat: object) -> bool:
        """Whether a trial has shown this same heartbeat for longer than the grace.

        Args:
            number: The trial's.
            beat: What it shows now.
        """
        now_s = self._clock()
        return now_s - self._heard_s.setdefault((number, beat), now_s) > self._grace_s


class Heartbeat:
    """Says again and again that the engine of a running trial lives, from a thread of its own.

    Args:
        trial: The trial.
        beat_s: Between two heartbeats.
        reached: Called whenever the storage took one.
    """

    def __init__(self, trial: Trial, beat_s: float, reached: Callable[[], None]) -> None:
        self._trial = trial
        self._beat_s = beat_s
        self._reached = reached
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; one that hangs in a lost network is left behind."""
        self._ended.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        count = 0
        while not self._ended.wait(self._beat_s):
            count += 1
            try:
                self._trial.set_user_attr(BEAT, count)
            except ENDED_ERROR:
                # The claim was given up by others; the trial's outcome will be stored anew.
                break
            except LOST_ERRORS:
                # Whoever runs the trial finds out when it ends; until then the next one may pass.
                continue
            self._reached()
        storage = self._trial.storage
        with suppress(*LOST_ERRORS):
            if isinstance(backend := getattr(storage, "_backend", storage), RDBStorage):
                backend.remove_session()
