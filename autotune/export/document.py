"""`recommendation.json`: the public document, its shape, and a typed way to read it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FiniteFloat, TypeAdapter

from autotune.configuration import Configuration
from autotune.events import Document
from autotune.outcome import Exchange


def _configuration(value: object) -> Configuration:
    if isinstance(value, Configuration):
        return value
    if not isinstance(value, dict):
        raise ValueError("a configuration is an object")
    return Configuration.from_json(value)


ConfigurationField = Annotated[Configuration, BeforeValidator(_configuration)]
"""A configuration whose global batch size is checked against its factors."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, arbitrary_types_allowed=True)


class Memory(_Part):
    """Bytes that the training process occupied."""

    total_bytes: int


class Readings(_Part):
    """What was measured of one configuration."""

    samples_per_s: FiniteFloat
    samples_per_s_ci95: tuple[FiniteFloat, FiniteFloat]
    tokens_per_s: FiniteFloat
    step_s: FiniteFloat
    memory: Memory
    exchange: Exchange | None = None
    """What the ranks exchange; None for one rank, or where it was not measured."""


class Efficiency(_Part):
    """Useful learning per sample against the baseline."""

    value: FiniteFloat
    interval: tuple[FiniteFloat, FiniteFloat]
    basis: Literal["measured", "assumed", "not needed"]


class Speedup(_Part):
    """Samples per second over the baseline's."""

    value: FiniteFloat
    ci95: tuple[FiniteFloat, FiniteFloat]


class Candidate(_Part):
    """A configuration with its readings."""

    configuration: ConfigurationField
    measured: Readings


class Baseline(_Part):
    """The user's present configuration; no readings where it did not fit."""

    configuration: ConfigurationField
    measured: Annotated[Readings | None, BeforeValidator(lambda value: value or None)] = None


class Alternative(Candidate):
    """Another answer, and what it is better at."""

    kind: str
    sample_efficiency: Efficiency | None = None
    """None where nobody said."""


class Evaluation(_Part):
    """How to evaluate beside training."""

    per_device_eval_batch_size: int
    """The largest that is worth it and predicted to fit."""


class Answer(Candidate):
    """The recommendation."""

    sample_efficiency: Efficiency
    baseline: Baseline
    speedup: Speedup | None = None
    evaluation: Evaluation | None = None
    """None where nothing is known of it."""
    memory_limit_bytes: int
    reasons: tuple[str, ...]
    also_consider: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    not_covered: tuple[str, ...]


class Trial(_Part):
    """One trial of the run."""

    number: int
    purpose: Literal["baseline", "search", "confirm", "memory"]
    configuration: ConfigurationField
    outcome: Literal["measured", "out_of_memory", "failed", "timed_out", "stopped"]
    sample_efficiency: Efficiency | None = None
    """None where nobody said, or nothing was measured."""
    cause: str | None = None


class Cost(_Part):
    """What the run took."""

    wall_s: FiniteFloat
    trials: int
    """Of the search, the baseline's included."""
    repeats: int = 0
    """Measurements that confirmed what these had found."""
    trial_s: FiniteFloat


class Job(_Part):
    """What was tuned."""

    name: str
    task: str
    model_class: str
    precision: Literal["fp32", "bf16", "fp16"]
    loss_repair: bool
    """Whether loss parity needs `model_accepts_loss_kwargs = False` on the Trainer."""
    has_unused_parameters: bool = False
    """Whether some trained parameter gets no gradient, which the wrapper that exchanges gradients
    has to know."""


class RecommendationDocument(_Part):
    """The whole document; further keys are kept."""

    schema_: Literal[1]
    run: str
    recommendation: Answer
    trials: tuple[Trial, ...]
    workload: Job | None = None
    environment: dict[str, str] = {}
    """Variables that the trials ran under."""
    machine: Document
    cost: Cost

    model_config = ConfigDict(
        extra="allow",
        frozen=True,
        arbitrary_types_allowed=True,
        alias_generator=lambda name: name.rstrip("_"),
    )


@cache
def _adapter() -> TypeAdapter[RecommendationDocument]:
    return TypeAdapter(RecommendationDocument)


def read(document: Document) -> RecommendationDocument:
    """The document, checked.

    Raises:
        pydantic.ValidationError: A field is missing or of another kind (a ValueError).
    """
    return _adapter().validate_python(document)


MEASURED_APART = (
    "The baseline's rate is that of the confirmation. This configuration was measured once, in the "
    "search, when the machine may have been faster or slower: the two rates do not compare."
)


def is_of_search_alone(document: RecommendationDocument, configuration: Configuration) -> bool:
    """Whether a configuration was not measured when others of the document were confirmed."""
    again = [
        trial.configuration
        for trial in document.trials
        if trial.purpose == "confirm" and trial.outcome == "measured"
    ]
    return bool(again) and configuration not in again


def are_measured_apart(document: RecommendationDocument, configuration: Configuration) -> bool:
    """Whether a configuration was measured by the search alone, and the baseline confirmed."""
    baseline = document.recommendation.baseline.configuration
    is_baseline_again = not is_of_search_alone(document, baseline)
    return is_baseline_again and is_of_search_alone(document, configuration)


def device_name(document: Document) -> str:
    """What was measured on, in words."""
    machine = document.get("machine")
    devices = machine.get("devices") if isinstance(machine, dict) else None
    names = [
        str(device["name"])
        for device in (devices if isinstance(devices, list) else [])
        if isinstance(device, dict) and "name" in device
    ]
    if not names:
        return "this machine"
    return names[0] if len(names) == 1 else f"{len(names)} × {names[0]}"


def as_json(document: Document) -> str:
    """`recommendation.json`."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def verify(path: Path, document: Document) -> str:
    """Reads the file back and compares it with what was meant.

    Raises:
        ValueError: It is not JSON, not of the public shape, or not what was meant.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    read(found)
    if found != document:
        odd = sorted(key for key in {*found, *document} if found.get(key) != document.get(key))
        raise ValueError(f"{', '.join(odd)} differs from the recommendation")
    return "the public schema, version 1"
