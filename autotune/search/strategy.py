"""Decides which candidate comes next: our own order, or an Optuna sampler, over one study."""

from __future__ import annotations

from autotune.configuration import Configuration
from autotune.request import Request
from autotune.search.engine import Strategy
from autotune.search.finished import FinishedTrial
from autotune.search.history import History
from autotune.search.order import Next, Over, next_candidate
from autotune.search.ranking import Standing
from autotune.search.session import Session
from autotune.search.study import Study, make_sampler, open_in_run, study_name

PATIENCE = 12
"""Sampled trials without a new best after which the search ends."""


class StudiedOrder:
    """Our own order; the study keeps the trials, for whoever looks into it with Optuna's tools."""

    def __init__(self, study: Study) -> None:
        self._study = study

    def ask(self, history: History) -> Next | Over:
        """The next candidate, or why there is none: a function of the history alone."""
        step = next_candidate(history)
        if isinstance(step, Next):
            self._study.ask(history, step.configuration)
        return step

    def tell(self, trial: FinishedTrial, history: History) -> None:
        """Stores the trial."""
        self._study.tell(trial)


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
            return self._named(history, baseline, "the present configuration")
        if self._name == "grid":
            return self._named(history, candidates[0], "next on the grid")
        waited = _trials_since_best(history)
        if waited >= PATIENCE:
            return Over(reason=f"no gain for {waited} trials")
        configuration = self._study.ask(history)
        return Next(configuration=configuration, why=f"proposed by the {self._name} sampler")

    def _named(self, history: History, configuration: Configuration, why: str) -> Next:
        self._study.ask(history, configuration)
        return Next(configuration=configuration, why=why)

    def tell(self, trial: FinishedTrial, history: History) -> None:
        """Stores the trial."""
        self._study.tell(trial)


def _trials_since_best(history: History) -> int:
    leader = Standing(history.measured).best()
    numbers = [t.number for t in history.trials if t.is_search]
    if leader is None:
        return len(numbers)
    return sum(number > leader.number for number in numbers)


def make_strategy(
    request: Request, session: Session, history: History, *, digest: str, machine: str
) -> Strategy:
    """The strategy that a request asks for, with its study opened and brought up to date.

    Raises:
        UsageError: The storage cannot be opened, or there is no such sampler.
    """
    stem = request.workload.name
    name = study_name(stem, history.space.digest, digest, machine, request.driver)
    sampler = make_sampler(request.sampler, request.seed)
    options = {
        "usable_bytes": history.usable_bytes or 1,
        "ignores_pruned": request.sampler == "gp",
    }
    if request.storage is not None:
        study = Study(request.storage, name, history.space, sampler, **options)  # type: ignore[arg-type]
    else:
        study, moved = open_in_run(
            session.run.study,
            name,
            history.space,
            sampler,
            **options,  # type: ignore[arg-type]
        )
        if moved is not None:
            session.warn(
                f"The study's database was damaged; it was moved to {moved.name}.",
                "It is rebuilt from the journal; nothing is lost.",
            )
    others = study.other_studies(stem)
    if others and request.storage is None:
        session.warn(
            f"Space, workload, machine or versions differ from an earlier part of this run: a new "
            f"study {name} was begun.",
            f"The earlier one stays readable: {', '.join(others)}.",
        )
    study.rebuild(history)
    return StudiedOrder(study) if request.sampler == "auto" else Sampled(study, request.sampler)
