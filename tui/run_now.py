"""What the UI knows of a run at one moment, and the reader that brings it up to date."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from autotune import lease
from autotune.display import wording
from autotune.events import Record, TrialProgressed
from autotune.journal import Tail
from autotune.run_directory import RunDirectory
from autotune.view import RunView, fold

Form: TypeAlias = Literal["empty", "running", "failed", "finished"]
"""Which of its four designed looks a screen has."""

NUM_LINES = 500
"""Events that are kept in words."""
_SLICE_BYTES = 256 * 1024
_LEASE_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One event in words."""

    t_s: float
    """Seconds since the run's start."""
    kind: str
    """The event's kind."""
    text: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """A run as the UI knows it. Immutable: a screen may keep one and compare."""

    directory: RunDirectory | None = None
    """None where no run was chosen yet."""
    view: RunView = RunView()
    lines: tuple[Line, ...] = ()
    """The latest events in words, oldest first."""
    num_records: int = 0
    """Records read so far, progress left out."""
    is_alive: bool = False
    """Whether an engine works on the run."""
    was_alive: bool = False
    """Whether one did at any time since the UI began to look."""
    is_read: bool = False
    """Whether the journal was read to its end once."""
    error: str | None = None
    """Why the run directory cannot be read."""

    @property
    def form(self) -> Form:
        """Empty before the first event; failed where the engine is gone or said so."""
        if self.view.started is None:
            return "running" if self.is_alive else "empty"
        if self.is_alive:
            return "running"
        return "finished" if self.state == "finished" else "failed"

    @property
    def state(self) -> str:
        """The run's state in a word or two, as `autotune runs` tells it."""
        return wording.run_state(self.view, is_alive=self.is_alive)

    @property
    def is_gone(self) -> bool:
        """Whether the engine ended without a word: it was killed, or its machine was."""
        return self.state == "killed"

    @property
    def name(self) -> str:
        """The run's name; empty where there is none."""
        return self.directory.name if self.directory is not None else ""


class RunReader:
    """Reads a run directory, again and again, each time only what is new.

    Args:
        directory: The run. It may be written meanwhile, and by several engines one after another.
        monotonic: A clock for how often to look at the lease.
    """

    def __init__(
        self, directory: RunDirectory, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._tail = Tail(directory.journal, directory.progress)
        self._num_restarts = 0
        self._lines: deque[Line] = deque(maxlen=NUM_LINES)
        self._monotonic = monotonic
        self._looked_s = float("-inf")
        self.now = RunNow(directory=directory)
        """What was known after the last look."""

    def look(self) -> RunNow | None:
        """Reads one slice of what is new; None where nothing was, so that nothing changed.

        A long journal takes several looks; `now.is_read` tells when its end was reached.
        """
        before = self.now
        try:
            records = self._tail.read(_SLICE_BYTES)
            # A damaged journal makes no sense in places; what does is shown.
            view, num_new = self._folded(records)
        except (OSError, ValueError) as error:
            self.now = replace(before, error=str(error), is_read=True)
            return self.now if self.now != before else None
        is_alive = self._is_alive(has_news=bool(records))
        self.now = replace(
            before,
            view=view,
            lines=tuple(self._lines) if num_new else before.lines,
            num_records=before.num_records + num_new,
            is_alive=is_alive,
            was_alive=before.was_alive or is_alive,
            is_read=before.is_read or not records,
            error=None,
        )
        return None if not records and _same_state(self.now, before) else self.now

    def _folded(self, records: list[Record]) -> tuple[RunView, int]:
        view = self.now.view
        if self._tail.num_restarts != self._num_restarts:
            self._num_restarts = self._tail.num_restarts
            self._lines.clear()
            view = RunView()
        num_new = 0
        for number, record in enumerate(records):
            view = fold([record], view)
            if isinstance(record.event, TrialProgressed):
                continue
            num_new += 1
            if len(records) - number <= NUM_LINES:
                self._lines.extend(
                    Line(t_s=record.t_s, kind=record.event.kind, text=text, seq=record.seq)
                    for text in wording.lines(record.event, view)
                )
        return view, num_new

    def _is_alive(self, *, has_news: bool) -> bool:
        now_s = self._monotonic()
        if now_s - self._looked_s < _LEASE_INTERVAL_S and not has_news:
            return self.now.is_alive
        self._looked_s = now_s
        held = lease.read(self._directory.lease)
        return held is not None and held.is_alive


def _same_state(one: RunNow, other: RunNow) -> bool:
    return (one.is_alive, one.is_read, one.error) == (other.is_alive, other.is_read, other.error)
