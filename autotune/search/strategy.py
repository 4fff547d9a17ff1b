"""Decides which candidate comes next: our own order, or an Optuna sampler, over one study."""

from __future__ import annotations

from autotune.configuration import Configuration
from autotune.request import Request
from autotune.search.engine import Strategy
from autotune.search.finished import FinishedTrial
from autotune.search.history import History
from autotune.search.order import Next, Over, next_candidate
from autotune.search.session import Session
from autotune.search.storage import StudyIdentity
from autotune.search.study import Study

PATIENCE = 12
"""Sampled trials without a new best after which the search ends."""


class StudiedOrder:
    """Our own order; the study keeps the trials, for whoever looks into it with Optuna's tools."""

    def __init__(self, study: Study) -> None:
        self._study = study

    def ask(self, history: History) -> Next | Over:
        """The next candidate, or why there is none: a function of the history alone."""
        step = next_candidate(history)
        if isinstance(step, Over):
            return step
        configuration = self._study.ask(history, step.configuration)
        return _next(configuration, step.configuration, step.why)

    def tell(self, trial: FinishedTrial, history: History) -> None:
        """Stores the trial."""
        self._study.tell(trial)

    def close(self) -> None:
        """Closes the study."""
        self._study.close()


class Sampled:
    """An Optuna sampler after the baseline, over the candidates that are still open.

    Args:
        study: Where the sampler reads and the trials are kept.
        name: The sampler's name; `grid` tries every candidate in the order of the space.
    """

    def __init__(self, study: Study, name: str) -> None:
        self._study = study
        self._name = name

    def ask(self, history: History) -> Next | Over:
        """The next candidate, or why there is none."""
        candidates = history.open_candidates
        if not candidates:
            return Over(reason="every candidate was tried or ruled out")
        baseline = history.space.baseline
        if not history.trials and baseline in candidates:
            return self._asked(history, baseline, "the present configuration")
        if self._name == "grid":
            return self._asked(history, candidates[0], "next on the grid")
        waited = _trials_since_best(history)
        if waited >= PATIENCE:
            return Over(reason=f"no gain for {waited} trials")
        return self._asked(history, None, f"proposed by the {self._name} sampler")

    def _asked(self, history: History, candidate: Configuration | None, why: str) -> Next | Over:
        return _next(self._study.ask(history, candidate), candidate, why)

    def tell(self, trial: FinishedTrial, history: History) -> None:
        """Stores the trial."""
        self._study.tell(trial)

    def close(self) -> None:
        """Closes the study."""
        self._study.close()


def _next(asked: Configuration | None, meant: Configuration | None, why: str) -> Next | Over:
    """What the study gave: somebody may have enqueued a candidate in it."""
    if asked is None:
        return Over(reason="every candidate was tried or ruled out")
    if meant is not None and asked != meant:
        why = "enqueued in the study"
    return Next(configuration=asked, why=why)


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

    Raises:
        UsageError: The storage cannot be opened, or the sampler needs a missing package.
    """
    identity = StudyIdentity(
        stem=request.workload.name,
        parts={
            "space": history.space.digest,
            "workload": digest,
            "machine": machine,
            "training loop": request.driver,
        },
    )
    study = Study(
        identity,
        history,
        sampler=request.sampler,
        seed=request.seed,
        run=session.run.name,
        warn=session.warn,
        path=session.run.study,
        storage=request.storage,
    )
    return StudiedOrder(study) if request.sampler == "auto" else Sampled(study, request.sampler)
