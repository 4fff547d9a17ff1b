"""The Optuna study of a run: an index of its trials that can be rebuilt from the journal.

Any Optuna sampler works behind `CandidateSampler`: it proposes, and what it proposes is moved to
the nearest candidate that is still open, so that nothing is tried twice and nothing that is known
not to fit is tried at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState
from pydantic import TypeAdapter

from autotune import lease
from autotune.configuration import Configuration
from autotune.errors import UsageError
from autotune.outcome import Measured, Outcome, OutOfMemory
from autotune.search.finished import FinishedTrial
from autotune.search.history import History
from autotune.space import Space

MICRO_BATCH_SIZE = "micro_batch_size"
CHECKPOINTING = "checkpointing"
LEASE = "autotune:lease"
OUTCOME = "autotune:outcome"
NUMBER = "autotune:number"
CONSTRAINT = "memory"
"""Peak over what may be filled, less one: above zero it does not fit."""
LEAST_VIOLATION = 1e-3
LOCK_TIMEOUT_S = 30.0

logging.getLogger("optuna").addHandler(logging.NullHandler())


def study_name(name: str, *parts: str) -> str:
    """A name that changes with the space, the workload, the machine or the versions."""
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    return f"{name}-{digest}"


class CandidateSampler(BaseSampler):
    """Lets another sampler propose, and moves its proposals onto open candidates.

    Args:
        inner: Any sampler; None where every candidate is named beforehand.
        space: What may be proposed.
    """

    def __init__(self, inner: BaseSampler | None, space: Space) -> None:
        self._inner = inner
        self._space = space
        self.open: Sequence[Configuration] = ()
        """Candidates that the next proposal is moved onto; set before every ask."""
        self.named: Configuration | None = None
        """The next candidate, where it is decided already."""

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All knobs are chosen together, since they have to make a candidate together."""
        return distributions(self._space)

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, object]:
        """The named candidate, or the open one nearest to what the inner sampler proposes."""
        if self.named is not None or self._inner is None:
            assert self.named is not None, "without a sampler every candidate is named"
            return parameters(self.named)
        inner = self._inner
        proposed = dict(
            inner.sample_relative(study, trial, inner.infer_relative_search_space(study, trial))
        )
        for name, distribution in search_space.items():
            if name not in proposed:
                proposed[name] = inner.sample_independent(study, trial, name, distribution)
        return parameters(nearest(self.open, proposed))

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> object:
        """Never needed: every parameter is part of the relative space."""
        raise AssertionError(f"{param_name} is not one of the knobs")

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Passed on."""
        if self._inner is not None:
            self._inner.before_trial(study, trial)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Passed on: samplers read constraints here."""
        if self._inner is not None:
            self._inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Passed on."""
        if self._inner is not None:
            self._inner.reseed_rng()


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The knobs as Optuna knows them."""
    sizes = space.micro_batch_sizes
    return {
        MICRO_BATCH_SIZE: IntDistribution(sizes[0], sizes[-1], log=True),
        CHECKPOINTING: CategoricalDistribution([str(form) for form in space.forms]),
    }


def parameters(configuration: Configuration) -> dict[str, object]:
    """A candidate as Optuna stores it."""
    return {
        MICRO_BATCH_SIZE: configuration.micro_batch_size,
        CHECKPOINTING: str(configuration.checkpointing),
    }


def nearest(candidates: Sequence[Configuration], proposed: Mapping[str, object]) -> Configuration:
    """The candidate closest to a proposal: same form first, then the size in doublings.

    Raises:
        ValueError: There is no candidate.
    """
    size = proposed[MICRO_BATCH_SIZE]
    assert isinstance(size, int | float), "sizes are numbers"

    def distance(candidate: Configuration) -> tuple[float, int]:
        other_form = str(candidate.checkpointing) != proposed[CHECKPOINTING]
        doublings = abs(math.log2(candidate.micro_batch_size / size))
        return doublings + (2.0 if other_form else 0.0), candidate.micro_batch_size

    return min(candidates, key=distance)


def make_sampler(name: str, seed: int) -> BaseSampler | None:
    """Optuna's sampler of that name; None for orders that need none.

    Raises:
        UsageError: There is no such sampler.
    """
    if name in ("auto", "grid"):
        return None
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    options: dict[str, object] = {"seed": seed, "n_startup_trials": 4}
    if not hasattr(optuna.Trial, "set_constraint"):
        options["constraints_func"] = _stored_constraint
    with quiet():
        if name == "tpe":
            return optuna.samplers.TPESampler(multivariate=True, **options)  # type: ignore[arg-type]
        if name == "gp":
            _one_thread()
            return optuna.samplers.GPSampler(**options)  # type: ignore[arg-type]
    raise UsageError(f"There is no sampler {name!r}.", "Choose auto, tpe, gp, random or grid.")


def _one_thread() -> None:
    """The gp sampler computes with torch: in this process on the CPU, with a single thread."""
    import os

    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    torch.set_num_threads(1)


def _stored_constraint(trial: FrozenTrial) -> tuple[float, ...]:
    return (float(trial.user_attrs.get(CONSTRAINT, 0.0)),)


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps Optuna's own remarks away from the user, who did not choose its parts."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)


class Study:
    """The study of one run.

    Args:
        url: An Optuna storage URL.
        name: The study's name, digest included.
        space: The candidates.
        sampler: Proposes; None where every candidate is named.
        usable_bytes: What a configuration may occupy.
        ignores_pruned: Whether the sampler sees only completed trials, as `gp` does.

    Raises:
        UsageError: The storage cannot be reached.
    """

    def __init__(
        self,
        url: str,
        name: str,
        space: Space,
        sampler: BaseSampler | None,
        *,
        usable_bytes: int,
        ignores_pruned: bool = False,
    ) -> None:
        self._space = space
        self._usable_bytes = usable_bytes
        self._ignores_pruned = ignores_pruned
        self._sampler = CandidateSampler(sampler, space)
        self._pending: dict[Configuration, optuna.Trial] = {}
        with quiet():
            self._study = optuna.create_study(
                storage=_storage(url),
                study_name=name,
                sampler=self._sampler,
                direction="maximize",
                load_if_exists=True,
            )
            self._close_orphans()

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials in the storage."""
        return self._study.get_trials(deepcopy=False)

    def other_studies(self, stem: str) -> list[str]:
        """Names of studies in the same storage that begin with `stem`, this one left out."""
        names = optuna.get_all_study_names(self._study._storage)
        return [n for n in names if n.startswith(f"{stem}-") and n != self._study.study_name]

    def ask(self, history: History, named: Configuration | None = None) -> Configuration:
        """Begins a trial: of the named candidate, or of what the sampler proposes.

        Raises:
            ValueError: No candidate is open.
        """
        self._sampler.open = history.open_candidates
        self._sampler.named = named
        with quiet():
            trial = self._study.ask(distributions(self._space))
            trial.set_user_attr(LEASE, asdict(lease.mine()))
        configuration = named or self._candidate(trial.params)
        self._pending[configuration] = trial
        return configuration

    def tell(self, finished: FinishedTrial) -> None:
        """Stores how a trial ended, the whole outcome with it."""
        trial = self._pending.pop(finished.configuration, None)
        if trial is None:
            # Measured again, or known from the journal only.
            self._sampler.named = finished.configuration
            with quiet():
                trial = self._study.ask(distributions(self._space))
        with quiet():
            self._tell(trial, finished)

    def _tell(self, trial: optuna.Trial, finished: FinishedTrial) -> None:
        outcome = finished.outcome
        trial.set_user_attr(NUMBER, finished.number)
        trial.set_user_attr("configuration", finished.configuration.to_json())
        trial.set_user_attr(OUTCOME, _outcome_json(outcome))
        match outcome:
            case Measured():
                excess = outcome.memory.total_bytes / self._usable_bytes - 1
                self._constrain(trial, min(0.0, excess))
                self._study.tell(trial, outcome.samples_per_s)
            case OutOfMemory():
                self._constrain(trial, self._violation(outcome))
                if self._ignores_pruned:
                    self._study.tell(trial, self._worst_value())
                else:
                    self._study.tell(trial, state=TrialState.PRUNED)
            case _:
                self._study.tell(trial, state=TrialState.FAIL)

    def _constrain(self, trial: optuna.Trial, value: float) -> None:
        trial.set_user_attr(CONSTRAINT, value)
        if hasattr(trial, "set_constraint"):
            trial.set_constraint(CONSTRAINT, value)

    def _violation(self, outcome: OutOfMemory) -> float:
        needed = outcome.needed_at_least_bytes
        if needed is None:
            return LEAST_VIOLATION
        return max(LEAST_VIOLATION, needed / self._usable_bytes - 1)

    def _worst_value(self) -> float:
        values = [t.value for t in self.trials if t.value is not None]
        return min(values, default=0.0)

    def rebuild(self, history: History) -> int:
        """Adds the trials that the journal has and the study lacks; returns how many."""
        known = {t.user_attrs.get(NUMBER) for t in self.trials}
        missing = [t for t in history.trials if t.is_search and t.number not in known]
        for trial in missing:
            if trial.configuration in self._space.candidates:
                self.tell(trial)
        return len(missing)

    def _candidate(self, params: Mapping[str, object]) -> Configuration:
        return nearest(self._space.candidates, params)

    def _close_orphans(self) -> None:
        """Ends trials that a dead engine left running, so that nobody waits for them."""
        for trial in self.trials:
            if trial.state in (TrialState.RUNNING, TrialState.WAITING):
                holder = trial.user_attrs.get(LEASE)
                if not isinstance(holder, dict) or not lease.Lease(**holder).is_alive:
                    self._study.tell(trial.number, state=TrialState.FAIL)


def _outcome_json(outcome: Outcome) -> object:
    return json.loads(TypeAdapter(type(outcome)).dump_json(outcome))


def _storage(url: str) -> optuna.storages.BaseStorage:
    options = {"connect_args": {"timeout": LOCK_TIMEOUT_S}} if url.startswith("sqlite") else None
    try:
        return optuna.storages.RDBStorage(url, engine_kwargs=options)
    except Exception as error:
        raise UsageError(
            f"The storage {_without_password(url)} cannot be opened: "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}.",
            "Check the URL of --storage, and that its database is there and its driver installed.",
        ) from error


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    credentials, at, place = rest.rpartition("@")
    return f"{scheme}{separator}…@{place}" if at and credentials else url


def open_in_run(
    path: Path,
    name: str,
    space: Space,
    sampler: BaseSampler | None,
    *,
    usable_bytes: int,
    ignores_pruned: bool,
) -> tuple[Study, Path | None]:
    """The study in a run's own database; a damaged database is moved aside.

    Returns:
        The study, and where a damaged database was moved to.
    """

    def make() -> Study:
        return Study(
            f"sqlite:///{path.absolute()}",
            name,
            space,
            sampler,
            usable_bytes=usable_bytes,
            ignores_pruned=ignores_pruned,
        )

    try:
        return make(), None
    except Exception:
        if not path.exists():
            raise
    moved = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    path.rename(moved)
    return make(), moved
