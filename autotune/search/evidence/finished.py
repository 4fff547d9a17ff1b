"""A trial that ended, and what it ruled out."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.configuration import Configuration
from autotune.events import Origin, RegionClosed
from autotune.outcome import Failed, Measured, Outcome, OutOfMemory, Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTrial:
    """A trial that ended, in any of the five ways."""

    number: int
    purpose: Purpose
    configuration: Configuration
    outcome: Outcome
    origin: Origin | None = None
    """The engine that ran it, where that is another one of a shared study."""

    @property
    def is_search(self) -> bool:
        """Whether it was a trial of the search: the baseline's counts as one."""
        return self.purpose in ("baseline", "search")

    @property
    def is_uncertain(self) -> bool:
        """Whether its process was killed, and memory is only the likely reason."""
        return isinstance(self.outcome, OutOfMemory) and not self.outcome.is_certain

    @property
    def is_killed(self) -> bool:
        """Whether its process was killed, and memory is not the reason."""
        return isinstance(self.outcome, Failed) and self.outcome.is_killed

    @property
    def may_be_repeated(self) -> bool:
        """Whether it leaves open what the configuration does: it may be tried once more."""
        return self.is_uncertain or self.is_killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What another engine of a shared study found out about a candidate."""

    configuration: Configuration
    outcome: Outcome
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTrial:
    """A trial that was measured, with its readings at hand."""

    number: int
    purpose: Purpose
    configuration: Configuration
    measured: Measured

    @property
    def total_bytes(self) -> int:
        """What it occupied at its peak."""
        return self.measured.memory.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedRegion:
    """Candidates that need no trial, by what earlier trials showed."""

    what: str
    reason: str
    trial: int | None
    """Number of the trial that closed it; None where it was closed before any."""
    by_memory: bool
    """Whether memory is the reason."""
    configurations: tuple[Configuration, ...]
    """Candidates that were open until then."""
    is_foreseen: bool = False
    """Whether a prediction from a traced step closed it: nothing of it was run."""

    @property
    def event(self) -> RegionClosed:
        """The event that tells of it."""
        return RegionClosed(
            what=self.what,
            reason=self.reason,
            num_removed=len(self.configurations),
            trial=self.trial,
        )
