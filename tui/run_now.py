"""What the UI knows of a run at one moment, and the reader that brings it up to date."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from autotune import journal
from autotune.display import standing, wording
from autotune.display.standing import Beginning
from autotune.errors import JournalError
from autotune.events import Record, TrialProgressed
from autotune.folding import fold
from autotune.journal import Tail
from autotune.run_directory import RunDirectory
from autotune.view import RunView, without_engine

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
    """What the run's clock showed: seconds worked on it."""
    kind: str
    """The event's kind."""
    text: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What is wrong with a run's directory, whatever became of the run."""

    what: str
    """In two words, for the first row of a screen."""
    cause: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """A run as the UI knows it. Immutable: a screen may keep one and compare."""

    directory: RunDirectory | None = None
    """None where no run was chosen yet."""
    view: RunView = RunView()
    """What its journal tells; while no engine works on it, nothing in there runs."""
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
    trouble: Trouble | None = None
    """Why not everything of it can be told."""
    beginning: Beginning = "not started"
    """How it stands where its journal tells nothing and no engine holds it."""

    @property
    def form(self) -> Form:
        """Empty before the first event; failed where the engine is gone or said so."""
        if self.is_alive:
            return "running"
        if self.view.started is None:
            return "failed" if self.is_gone or self.trouble is not None else "empty"
        return "finished" if self.state == "finished" else "failed"

    @property
    def state(self) -> str:
        """The run's state in a word or two, as `autotune runs` tells it."""
        if self.view.started is None and self.view.ended is None and not self.is_alive:
            return self.beginning if self.trouble is None else "damaged"
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
        unix_time: The wall clock, to compare files with.
    """

    def __init__(
        self,
        directory: RunDirectory,
        monotonic: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._tail = Tail(directory.journal, directory.progress)
        self._unix_time = unix_time
        self._view = RunView()
        """What the records tell by themselves."""
        self._left_of = self._left = self._view
        self._senseless = ""
        """What is wrong with the first event that makes no sense."""
        self._num_restarts = 0
        self._lines: deque[Line] = deque(maxlen=NUM_LINES)
        self._unworded: deque[Record] = deque(maxlen=NUM_LINES)
        self._monotonic = monotonic
        self._looked_s = float("-inf")
        self.now = RunNow(directory=directory)
        """What was known after the last look."""

    def look(self) -> RunNow | None:
        """Reads one slice of what is new; None where nothing was, so that nothing changed.

        A long journal takes several looks; `now.is_read` tells when its end was reached.
        """
        before = self.now
        fault: OSError | None = None
        try:
            records = self._tail.read(_SLICE_BYTES)
        except OSError as error:
            records, fault = [], error
        num_new = self._take(records)
        has_words = self._find_words()
        is_alive = self._is_alive(has_news=bool(records))
        self.now = replace(
            before,
            view=self._view if is_alive else self._without_engine(),
            lines=tuple(self._lines) if has_words else before.lines,
            num_records=before.num_records + num_new,
            is_alive=is_alive,
            was_alive=before.was_alive or is_alive,
            is_read=before.is_read or self._tail.is_at_end or fault is not None,
            trouble=self._trouble(fault),
            beginning=self._beginning(is_alive=is_alive),
        )
        return None if not records and _same_state(self.now, before) else self.now

    def give_up(self, error: Exception) -> RunNow | None:
        """Tells of an error that nobody thought of; None where it was told already."""
        before = self.now
        cause = f"The run cannot be read any further: {type(error).__name__}: {error}"
        trouble = Trouble(what="not read", cause=cause, remedy="`autotune show` may tell more.")
        self.now = replace(before, trouble=trouble, is_read=True)
        return None if self.now == before else self.now

    def _take(self, records: list[Record]) -> int:
        """Takes records over, and says how many of them are no mere progress."""
        if self._tail.num_restarts != self._num_restarts:
            self._num_restarts = self._tail.num_restarts
            self._lines.clear()
            self._view, self._senseless = RunView(), ""
        if not records:
            return 0
        try:
            self._view = fold(records, self._view)
        except (ValueError, ArithmeticError):
            # A damaged journal makes no sense in places; what does is shown.
            records = self._sensible(records)
        news = [record for record in records if not isinstance(record.event, TrialProgressed)]
        self._unworded.extend(news)
        return len(news)

    def _find_words(self) -> bool:
        """Puts events into words, once all of them are known, and says whether there are new ones.

        Of a long journal only the last events are worth words.
        """
        if not self._unworded or not self._tail.is_at_end:
            return False
        for record in self._unworded:
            self._lines.extend(self._words(record))
        self._unworded.clear()
        return True

    def _sensible(self, records: list[Record]) -> list[Record]:
        """Folds one record after the other, and returns those that make sense."""
        taken = []
        for record in records:
            try:
                self._view = fold([record], self._view)
            except (ValueError, ArithmeticError) as error:
                self._senseless = self._senseless or str(error)
            else:
                taken.append(record)
        return taken

    def _words(self, record: Record) -> list[Line]:
        try:
            told = wording.lines(record.event, self._view)
        except (ValueError, ArithmeticError) as error:
            self._senseless = self._senseless or str(error)
            return []
        return [
            Line(
                t_s=self._view.clock_s(record.t_s),
                kind=record.event.kind,
                text=text,
                seq=record.seq,
            )
            for text in told
        ]

    def _without_engine(self) -> RunView:
        """What the records tell where no engine works on the run; the same object for the same."""
        if self._left_of is not self._view:
            self._left_of, self._left = self._view, without_engine(self._view)
        return self._left

    def _trouble(self, fault: OSError | None) -> Trouble | None:
        path = self._directory.journal
        if _is_gone(self._directory.path):
            return Trouble(
                what="directory gone",
                cause=f"The run's directory {self._directory.path} is gone.",
                remedy="Put it back, or look at another run; what was read before is still shown.",
            )
        if fault is not None:
            return Trouble(
                what="unreadable",
                cause=f"{path} cannot be read: {fault.strerror}.",
                remedy="Look at its owner and its rights.",
            )
        lost = journal.missing(self._directory)
        if lost is not None:
            return _of_journal("journal missing", lost)
        number = self._tail.damaged_line
        if number is not None:
            return _of_journal("journal damaged", journal.damaged(path, number))
        if self._senseless:
            return Trouble(
                what="journal damaged",
                cause=f"{path} holds an event that makes no sense: {self._senseless}",
                remedy="It is left out here; delete its line to go on with the run.",
            )
        return None

    def _beginning(self, *, is_alive: bool) -> Beginning:
        if is_alive or self._view.started is not None:
            return "not started"
        return standing.beginning(self._directory, self._unix_time())

    def _is_alive(self, *, has_news: bool) -> bool:
        now_s = self._monotonic()
        if now_s - self._looked_s < _LEASE_INTERVAL_S and not has_news:
            return self.now.is_alive
        self._looked_s = now_s
        return standing.is_held(self._directory)


def _is_gone(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        # Whoever reads in it has more to say.
        return False
    return False


def _of_journal(what: str, error: JournalError) -> Trouble:
    return Trouble(what=what, cause=error.cause, remedy=error.remedy or "")


def _same_state(one: RunNow, other: RunNow) -> bool:
    return _state(one) == _state(other)


def _state(now: RunNow) -> tuple[object, ...]:
    return now.is_alive, now.is_read, now.trouble, now.beginning
