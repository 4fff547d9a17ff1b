"""Decides which candidate comes next: our own order, or an Optuna sampler, over one study."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from autotune.request import Request
from autotune.search.engine import Strategy
from autotune.search.evidence.finished import Arrival, FinishedTrial
from autotune.search.evidence.history import History
from autotune.search.order import Next, Over, Wait, next_candidate
from autotune.search.session import Session
from autotune.search.studies.claims import Holder
from autotune.search.studies.identity import identity_of
from autotune.search.studies.study import Study
from autotune.units import counted

PATIENCE = 12
"""Sampled trials without a new best after which the search ends."""


class _Studied:
    """What every strategy does with its study."""

    def __init__(self, study: Study) -> None:
        self._study = study

    def arrivals(self, history: History) -> Sequence[Arrival]:
        """What other engines found out that the history does not know yet."""
        return self._study.arrivals(history)

    def tell(self, trial: FinishedTrial, history: History) -> None:
        """Stores the trial."""
        self._study.tell(trial)

    def close(self) -> None:
        """Closes the study."""
        self._study.close()

    def _beside_others(
        self, history: History, choose: Callable[[History], Next | Over | None]
    ) -> Next | Over | Wait:
        """What to do while other engines try candidates, which are left to them.

        Args:
            history: What is known.
            choose: The candidate to try, or why there is none; None leaves it to the sampler.
        """
        held = self._study.held()
        around = replace(history, held=frozenset(held))
        step = choose(around)
        if isinstance(step, Over):
            if held and not isinstance(choose(history), Over):
                # The trials of others decide how it goes on.
                return Wait(held=tuple(sorted(held.items(), key=str)))
            return step
        meant = step.configuration if step is not None else None
        asked = self._study.ask(around, meant)
        if asked is None:
            return Wait()
        if step is None:
            return Next(configuration=asked, why="")
        # Somebody may have enqueued a candidate in the study.
        return step if asked == meant else Next(configuration=asked, why="enqueued in the study")


class StudiedOrder(_Studied):
    """Our own order; the study keeps the trials, for other engines and Optuna's tools."""

    def ask(self, history: History) -> Next | Over | Wait:
        """The next candidate, why there is none, or whom to wait for.

        A function of the history and of what others try at the moment.
        """
        return self._beside_others(history, next_candidate)


class Sampled(_Studied):
    """An Optuna sampler after the baseline, over the candidates that are still open.

    Args:
        study: Where the sampler reads and the trials are kept.
        name: The sampler's name; `grid` tries every candidate in the order of the space.
    """

    def __init__(self, study: Study, name: str) -> None:
        super().__init__(study)
        self._name = name

    def ask(self, history: History) -> Next | Over | Wait:
        """The next candidate, why there is none, or whom to wait for."""
        step = self._beside_others(history, self._choose)
        if isinstance(step, Next) and not step.why:
            return replace(step, why=f"proposed by the {self._name} sampler")
        return step

    def _choose(self, history: History) -> Next | Over | None:
        candidates = history.open_candidates
        if not candidates:
            return Over(reason="every candidate was tried or ruled out")
        baseline = history.space.baseline
        if not history.trials and baseline in candidates:
            return Next(configuration=baseline, why="the present configuration")
        if self._name == "grid":
            return Next(configuration=candidates[0], why="next on the grid")
        waited = _trials_since_best(history)
        if waited >= PATIENCE:
            return Over(reason=f"no gain for {counted(waited, 'trial')}")
        return None


def _trials_since_best(history: History) -> int:
    leader = history.standing.best()
    numbers = [t.number for t in history.trials if t.is_search]
    if leader is None:
        return len(numbers)
    return sum(number > leader.number for number in numbers)


def make_strategy(
    request: Request, session: Session, history: History, *, digest: str, machine: str
) -> Strategy:
    """The strategy that a request asks for, with its study opened and brought up to date.

    Args:
        request: What was asked for.
        session: Whose run it is.
        history: What its journal knows.
        digest: Of the workload.
        machine: Equal for machines whose trials can be compared.

    Raises:
        UsageError: The sampler needs a missing package.
    """
    study = Study(
        identity_of(request, history, digest=digest, machine=machine),
        history,
        sampler=request.sampler,
        seed=request.seed,
        me=Holder.mine(session.run.name, _run_id(session)),
        warn=session.warn,
        say=session.emit,
        path=session.run.study,
        storage=request.storage,
    )
    return StudiedOrder(study) if request.sampler == "auto" else Sampled(study, request.sampler)


def _run_id(session: Session) -> str:
    """Tells this run apart from all others anywhere, and stays as long as its journal."""
    first = next(iter(session.journal.records), None)
    parts = [str(session.run.path.absolute())]
    if first is not None and first.event.kind == "run_started":
        started = first.event
        parts = [started.run, started.host, repr(started.created_unix_s)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
