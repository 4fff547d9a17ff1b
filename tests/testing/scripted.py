"""An engine that runs nothing: it answers every trial from a table and keeps what it was told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from autotune.configuration import Configuration
from autotune.events import Event
from autotune.outcome import Outcome, Purpose
from autotune.search.engine import Engine
from autotune.search.evidence.closing import with_trial
from autotune.search.evidence.finished import FinishedTrial
from autotune.search.evidence.history import History


@dataclass
class Scripted:
    """What stages after the search need of an engine."""

    history: History
    outcome: Callable[[Configuration], Outcome]
    events: list[Event] = field(default_factory=list)
    asked: list[tuple[Configuration, str]] = field(default_factory=list)
    is_over: bool = False
    remaining_s: float = 100.0

    @property
    def session(self) -> object:
        return SimpleNamespace(
            emit=self.events.append,
            should_end=lambda: self.is_over,
            remaining_s=self.remaining_s,
            warn=lambda cause, remedy: self.warnings.append(cause),
            run=SimpleNamespace(path=self.path),
        )

    warnings: list[str] = field(default_factory=list)
    path: object = None
    pool: object = None
    plan: object = None

    def run(self, configuration: Configuration, purpose: Purpose, why: str) -> FinishedTrial:
        self.asked.append((configuration, why))
        trial = FinishedTrial(
            number=len(self.history.trials),
            purpose=purpose,
            configuration=configuration,
            outcome=self.outcome(configuration),
        )
        self.history = with_trial(self.history, trial)
        return trial

    @property
    def as_engine(self) -> Engine:
        return cast("Engine", self)
