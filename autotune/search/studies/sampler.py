"""Optuna's samplers over a finite list of candidates: they propose, the list decides.

A proposal is projected onto the nearest open candidate before anything is recorded, so that a
sampler learns from what was really run, and nothing known is launched again.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.configuration import Configuration
from autotune.errors import UsageError
from autotune.request import SamplerName
from autotune.space import Space

Parameters: TypeAlias = dict[str, int | str]
CONSTRAINT_ATTRIBUTE = "memory_over_limit"
"""User attribute of a trial: memory over what may be filled, less one; above zero is violated."""
CHECKPOINTING_STEP = 1.0
"""How far two neighbouring checkpointing forms are apart, in doublings of the micro-batch."""
CANDIDATES_PER_RANDOM_TRIAL = 8
"""A model-based sampler starts with one random trial for so many candidates, two at the least."""


def has_set_constraint() -> bool:
    """Whether the installed Optuna takes constraints from the trial, or from a function."""
    return hasattr(Trial, "set_constraint")


class Axes:
    """The knobs of a space as Optuna's parameters."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._forms = [str(form) for form in space.forms]
        self.distributions: dict[str, BaseDistribution] = {
            "micro_batch_size": _whole_numbers([c.micro_batch_size for c in space.candidates]),
            "checkpointing": CategoricalDistribution(self._forms),
        }
        for name in ("world_size", "local_sgd_steps"):
            values = [getattr(c, name) for c in space.candidates]
            if len(set(values)) > 1:
                self.distributions[name] = _whole_numbers(values)

    def parameters(self, configuration: Configuration) -> Parameters:
        """A configuration as Optuna records it."""
        return {
            name: str(configuration.checkpointing)
            if name == "checkpointing"
            else getattr(configuration, name)
            for name in self.distributions
        }

    def configuration(self, parameters: Mapping[str, object]) -> Configuration | None:
        """The candidate that has exactly these parameters."""
        return next((c for c in self._space.candidates if self.parameters(c) == parameters), None)

    def nearest(
        self, parameters: Mapping[str, int | str], candidates: Sequence[Configuration]
    ) -> Configuration:
        """The candidate nearest to a proposal; the first of several."""

        def distance(candidate: Configuration) -> float:
            total = 0.0
            for name, value in self.parameters(candidate).items():
                proposed = parameters[name]
                if isinstance(value, int) and isinstance(proposed, int):
                    total += abs(math.log2(value / proposed))
                else:
                    step = self._forms.index(str(value)) - self._forms.index(str(proposed))
                    total += CHECKPOINTING_STEP * abs(step)
            return total

        return min(candidates, key=distance)


def _whole_numbers(values: Sequence[int]) -> IntDistribution:
    return IntDistribution(min(values), max(values), log=True)


class Proposer:
    """What a sampler proposes, projected onto the candidates that it may choose from.

    The sampler works on a copy of the study in memory: what it thinks of on the way never reaches a
    shared storage, where only whole claims may stand, and a lost storage takes nothing from it.

    Args:
        axes: The knobs.
        inner: Who proposes; None proposes the first candidate.
        needs_torch: Whether the inner sampler computes with torch once it has a model.
    """

    def __init__(self, axes: Axes, inner: BaseSampler | None, *, needs_torch: bool = False) -> None:
        self._axes = axes
        self._needs_torch = needs_torch
        self.inner = inner
        """The sampler; a study needs a `HearingSampler` for it."""
        self.fault: str | None = None
        """Why the inner sampler could not propose the last time, if it could not."""

    def propose(
        self, trials: Sequence[FrozenTrial], candidates: Sequence[Configuration]
    ) -> Configuration:
        """The candidate to try next.

        Args:
            trials: What the study knows, running trials included.
            candidates: What may be chosen, at least one.
        """
        self.fault = None
        if self.inner is None:
            return candidates[0]
        try:
            if self._needs_torch:
                # More threads would compete with the trials for the processor.
                importlib.import_module("torch").set_num_threads(1)
            proposal = self._copy(trials).ask(self._axes.distributions).params
        except (ArithmeticError, RuntimeError, ValueError) as error:
            self.fault = f"{type(self.inner).__name__}: {error}"
            return candidates[0]
        return self._axes.nearest(proposal, candidates)

    def _copy(self, trials: Sequence[FrozenTrial]) -> optuna.Study:
        study = optuna.create_study(
            storage=optuna.storages.InMemoryStorage(), sampler=self.inner, direction="maximize"
        )
        for trial in trials:
            if trial.state is not TrialState.WAITING:
                bare = copy.copy(trial)
                # Whole outcomes stand there, which no sampler reads.
                bare.user_attrs = {}
                study.add_trial(bare)
        return study


class HearingSampler(BaseSampler):
    """Stands in the study for a sampler that proposes elsewhere, and tells it how trials ended.

    An Optuna without `set_constraint` evaluates its constraints there.

    Args:
        inner: Who hears of it, if anybody.
    """

    def __init__(self, inner: BaseSampler | None) -> None:
        self._inner = inner

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Passed on."""
        if self._inner is not None:
            self._inner.after_trial(study, trial, state, values)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """None: what is tried stands in a trial from its first moment."""
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, int | str]:
        """Nothing."""
        return {}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> int | str:
        """Never needed.

        Raises:
            ValueError: Always.
        """
        raise ValueError(f"{param_name} is not sampled here.")


def make_proposer(name: SamplerName, space: Space, axes: Axes, seed: int) -> Proposer:
    """The sampler called `name`, over the candidates of `space`.

    `auto` and `grid` propose nothing themselves: the candidate is given, or the list's next one.

    Raises:
        UsageError: The sampler needs a package that is not installed.
    """
    num_random = max(2, len(space.candidates) // CANDIDATES_PER_RANDOM_TRIAL)
    inner: BaseSampler | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "random":
            inner = RandomSampler(seed=seed)
        elif name == "tpe":
            inner = _constrained(
                TPESampler, seed=seed, n_startup_trials=num_random, multivariate=True
            )
        elif name == "gp":
            missing = [p for p in ("scipy", "torch") if importlib.util.find_spec(p) is None]
            if missing:
                raise UsageError(
                    f"The sampler gp needs {' and '.join(missing)}, which is not installed.",
                    f"Install it (python -m pip install {' '.join(missing)}), or use another "
                    "--sampler.",
                )
            inner = _constrained(GPSampler, seed=seed, n_startup_trials=num_random)
    return Proposer(axes, inner, needs_torch=name == "gp")


def _constrained(make: Callable[..., BaseSampler], **options: int) -> BaseSampler:
    """A sampler that knows violated constraints: from its trials, or else from a function."""
    if has_set_constraint() or "constraints_func" not in inspect.signature(make).parameters:
        return make(**options)
    return make(
        **options,
        constraints_func=lambda trial: (trial.user_attrs.get(CONSTRAINT_ATTRIBUTE, 0.0),),
    )
