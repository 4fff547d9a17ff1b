"""The recommendation of a run as the screen takes it: the answer and what may be had instead."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from autotune.configuration import Configuration
from autotune.events import Document


def _configuration(value: object) -> Configuration:
    if isinstance(value, Configuration):
        return value
    if not isinstance(value, dict):
        raise ValueError("a configuration is an object")
    return Configuration.from_json(value)


_Configuration = Annotated[Configuration, BeforeValidator(_configuration)]
_Pair = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the training process occupied."""

    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What was measured of a configuration."""

    samples_per_s: Annotated[float, Field(gt=0)]
    samples_per_s_ci95: _Pair
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """Samples per second over the baseline's."""

    value: float
    ci95: _Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Useful learning per sample against the baseline."""

    value: float
    interval: _Pair
    basis: str
    """measured, assumed or not needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the user has now; no readings where it did not fit."""

    configuration: _Configuration
    measured: Annotated[Readings | None, BeforeValidator(lambda value: value or None)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One configuration that may be taken: the recommended one, or an alternative to it."""

    configuration: _Configuration
    measured: Readings
    kind: str | None = None
    """The kind of alternative, as `autotune export --alternative` takes it; None for the answer."""
    reason: str = ""

    @property
    def title(self) -> str:
        """What it is, in two or three words."""
        return self.kind or "the answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How to evaluate beside training."""

    per_device_eval_batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The recommendation, as the public document holds it."""

    configuration: _Configuration
    measured: Readings
    baseline: Baseline
    sample_efficiency: Efficiency
    speedup: Speedup | None = None
    evaluation: Evaluation | None = None
    """None where nothing is known of it."""
    memory_limit_bytes: int = 0
    reasons: tuple[str, ...] = ()
    also_consider: tuple[str, ...] = ()
    alternatives: tuple[Offer, ...] = ()
    not_covered: tuple[str, ...] = ()

    @property
    def offers(self) -> tuple[Offer, ...]:
        """What may be taken, the recommended one first."""
        own = Offer(configuration=self.configuration, measured=self.measured)
        return (own, *self.alternatives)

    @property
    def is_baseline(self) -> bool:
        """Whether it says to keep what there is."""
        return self.configuration == self.baseline.configuration


@cache
def _adapter() -> TypeAdapter[Answer]:
    return TypeAdapter(Answer)


def answer_of(document: Document | None) -> Answer | str | None:
    """The answer in the public document of a run.

    Returns:
        The answer; a sentence where it cannot be read; None where there is none.
    """
    found = (document or {}).get("recommendation")
    if found is None:
        return None
    try:
        return _adapter().validate_python(found)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        return f"The recommendation cannot be read ({place}: {fault['msg']})."
