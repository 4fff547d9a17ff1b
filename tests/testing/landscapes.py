"""Landscapes: the outcome of every configuration of a space, recorded or made up, to be replayed.

A recorded landscape is a JSON file under `recorded/`; a made-up one follows from a few physical
figures, and knows the true rates behind its noisy readings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, TypeAdapter

from autotune.configuration import Configuration, default_baseline
from autotune.outcome import Measured, MemoryUse, Outcome, OutOfMemory, Speed
from autotune.search.evidence.closing import with_trial
from autotune.search.evidence.finished import FinishedTrial, MeasuredTrial
from autotune.search.evidence.history import History
from autotune.search.evidence.ranking import Standing
from autotune.search.evidence.statistics import samples_per_s_interval
from autotune.search.order import Next, Over
from autotune.space import Space, plan
from autotune.workload.facts import CheckpointingForm

MIB = 1024**2
FORMS = (None, 3, 2, 1)
"""Every n-th layer is checkpointed; None: no layer."""
KEPT_FRACTIONS = (1.0, 0.72, 0.58, 0.2)
"""What each form keeps for the backward pass."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What one configuration shows."""

    configuration: Configuration
    outcome: Annotated[Outcome, Field(discriminator="kind")]
    true_samples_per_s: float | None = None
    """The rate behind the readings, where it is known."""


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """Every candidate of a space with its outcome."""

    name: str
    space: Space
    entries: tuple[Entry, ...]
    usable_bytes: int | None = None
    gradient_bytes: int = 0
    origin: str = ""
    """Of a recorded one: machine, versions and memory limit, in words."""

    def outcome(self, configuration: Configuration) -> Outcome:
        return self._entry(configuration).outcome

    def rate(self, configuration: Configuration) -> float:
        """Samples per second: the true rate where it is known, else the measured one; 0 if none."""
        entry = self._entry(configuration)
        if not isinstance(entry.outcome, Measured):
            return 0.0
        return entry.true_samples_per_s or entry.outcome.samples_per_s

    def regret(self, configuration: Configuration) -> float:
        """How much slower than the best one it is: 0.03 is three per cent more time."""
        return max(self.rate(e.configuration) for e in self.entries) / self.rate(configuration) - 1

    def _entry(self, configuration: Configuration) -> Entry:
        return next(e for e in self.entries if e.configuration == configuration)

    def save(self, path: Path) -> None:
        path.write_bytes(_adapter().dump_json(self, indent=1) + b"\n")


@cache
def _adapter() -> TypeAdapter[Landscape]:
    return TypeAdapter(Landscape)


def load(path: Path) -> Landscape:
    return _adapter().validate_json(path.read_bytes())


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a strategy did on a landscape."""

    history: History
    reason: str

    @property
    def chosen(self) -> MeasuredTrial:
        chosen = Standing(self.history.measured).best()
        assert chosen is not None
        return chosen

    @property
    def num_out_of_memory(self) -> int:
        return sum(isinstance(t.outcome, OutOfMemory) for t in self.history.trials)


Strategy = Callable[[History], Next | Over]


def replay(landscape: Landscape, strategy: Strategy, max_trials: int = 1000) -> Replay:
    """Runs a strategy against a landscape, without running anything else."""
    history = History(
        space=landscape.space,
        usable_bytes=landscape.usable_bytes,
        gradient_bytes=landscape.gradient_bytes,
    )
    for number in range(max_trials):
        proposal = strategy(history)
        if isinstance(proposal, Over):
            return Replay(history=history, reason=proposal.reason)
        history = with_trial(
            history,
            FinishedTrial(
                number=number,
                purpose="baseline" if number == 0 else "search",
                configuration=proposal.configuration,
                outcome=landscape.outcome(proposal.configuration),
            ),
        )
    return Replay(history=history, reason="the trials are used up")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A made-up training job in a few physical figures."""

    name: str
    lengths: tuple[float, float]
    """Median and spread (of the logarithm) of the tokens of a sample."""
    max_length: int
    s_per_token: float
    """Forward and backward, at full efficiency."""
    s_per_micro_batch: float
    """What each micro-batch costs beyond its tokens."""
    growth_per_doubling: float = 0.0
    """Part by which a token gets dearer when the micro-batch doubles (caches overflow)."""
    s_per_step: float = 0.0
    """Optimizer step."""
    recompute_fraction: float = 0.33
    """What every checkpointed layer adds, when all are."""
    fixed_bytes: int = 300 * MIB
    gradient_bytes: int = 90 * MIB
    bytes_per_token: int = 200_000
    """Kept for the backward pass without checkpointing."""
    kept_fractions: tuple[float, ...] = KEPT_FRACTIONS
    """What each form keeps of it."""


CPU_SHORT = Job(
    name="CPU, short texts",
    lengths=(24.0, 0.5),
    max_length=128,
    s_per_token=0.0009,
    s_per_micro_batch=0.06,
    growth_per_doubling=0.02,
    s_per_step=0.02,
)
CPU_LONG = Job(
    name="CPU, long texts",
    lengths=(140.0, 0.6),
    max_length=256,
    s_per_token=0.0016,
    s_per_micro_batch=0.03,
    growth_per_doubling=0.03,
    s_per_step=0.02,
)
CPU_PACKED = Job(
    name="CPU, packed blocks",
    lengths=(128.0, 0.0),
    max_length=128,
    s_per_token=0.0005,
    s_per_micro_batch=0.02,
    growth_per_doubling=0.015,
    s_per_step=0.02,
)
GPU_SMALL = Job(
    name="GPU, launches decide",
    lengths=(128.0, 0.4),
    max_length=512,
    s_per_token=1e-6,
    s_per_micro_batch=0.015,
    s_per_step=0.005,
)
GPU_LARGE = Job(
    name="GPU, arithmetic decides",
    lengths=(512.0, 0.0),
    max_length=512,
    s_per_token=4e-5,
    s_per_micro_batch=0.01,
    s_per_step=0.05,
)
GPU_PAYS = Job(
    name="GPU, checkpointing pays",
    lengths=(256.0, 0.0),
    max_length=256,
    s_per_token=1e-5,
    s_per_micro_batch=0.02,
    recompute_fraction=0.25,
)
JOBS = (CPU_SHORT, CPU_LONG, CPU_PACKED, GPU_SMALL, GPU_LARGE, GPU_PAYS)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How readings differ from the truth."""

    between_trials: float = 0.01
    """Spread of the logarithm that all steps of a trial share."""
    between_steps: float = 0.02
    hiccups: float = 0.0
    """Probability that a step is held up, to 1.2 to 3 times its time."""
    num_steps: int = 6


def make_space(
    global_batch_size: int,
    baseline_size: int | None = None,
    kept_fractions: tuple[float, ...] = KEPT_FRACTIONS,
) -> Space:
    """All divisors by all four checkpointing forms."""
    baseline = default_baseline(global_batch_size)
    if baseline_size is not None:
        baseline = Configuration(
            micro_batch_size=baseline_size, accumulation_steps=global_batch_size // baseline_size
        )
    forms = [
        CheckpointingForm(
            every_n_layers=n,
            offload=False,
            is_available=True,
            saved_bytes=round(kept_fractions[place] * MIB),
        )
        for place, n in enumerate(FORMS)
        if n is not None
    ]
    return plan(baseline=baseline, num_rows=100_000, forms=forms, saved_bytes_without=MIB)


def needed_bytes(job: Job, configuration: Configuration) -> int:
    """Peak on the longest samples: the optimizer's floor, or the activations."""
    form = FORMS.index(configuration.checkpointing.every_n_layers)
    activations = (
        job.bytes_per_token
        * job.kept_fractions[form]
        * job.max_length
        * configuration.micro_batch_size
    )
    gradients = job.gradient_bytes if configuration.accumulation_steps > 1 else 0
    return int(job.fixed_bytes + max(activations + gradients, job.gradient_bytes * 1.2))


def make_landscape(
    job: Job,
    *,
    global_batch_size: int = 24,
    baseline_size: int | None = None,
    fraction_out: float = 0.0,
    noise: Noise = Noise(),
    seed: int = 0,
) -> Landscape:
    """Makes up what every configuration of a job shows.

    Args:
        job: What is trained.
        global_batch_size: Its divisors are the micro-batch sizes.
        baseline_size: The user's micro-batch size, if not the default.
        fraction_out: Part of the grid that the memory limit rules out.
        noise: How noisy the readings are.
        seed: Of data and noise.
    """
    space = make_space(global_batch_size, baseline_size, job.kept_fractions)
    rng = np.random.default_rng(seed)
    needs = sorted(needed_bytes(job, c) for c in space.candidates)
    num_in = round(len(needs) * (1 - fraction_out))
    limit_bytes = needs[num_in - 1] + MIB if num_in < len(needs) else 2 * needs[-1]
    median, spread = job.lengths
    lengths = np.clip(
        median * np.exp(spread * rng.standard_normal((noise.num_steps, global_batch_size))),
        4,
        job.max_length,
    )
    entries = []
    for configuration in space.candidates:
        need = needed_bytes(job, configuration)
        if need > limit_bytes:
            outcome: Outcome = OutOfMemory(where="device", cause="made up", limit_bytes=limit_bytes)
            entries.append(Entry(configuration=configuration, outcome=outcome))
            continue
        true_s = _step_times(job, configuration, lengths)
        factor = np.exp(
            noise.between_trials * rng.standard_normal()
            + noise.between_steps * rng.standard_normal(noise.num_steps)
        )
        held_up = rng.random(noise.num_steps) < noise.hiccups
        factor *= np.where(held_up, rng.uniform(1.2, 3.0, noise.num_steps), 1.0)
        entries.append(
            Entry(
                configuration=configuration,
                outcome=measured(true_s * factor, global_batch_size, need),
                true_samples_per_s=float(global_batch_size * len(true_s) / true_s.sum()),
            )
        )
    return Landscape(
        name=job.name,
        space=space,
        entries=tuple(entries),
        usable_bytes=limit_bytes,
        gradient_bytes=job.gradient_bytes,
    )


def _step_times(
    job: Job,
    configuration: Configuration,
    lengths: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    size = configuration.micro_batch_size
    micro_batches = lengths.reshape(len(lengths), -1, size)
    padded_tokens = micro_batches.max(axis=2).sum(axis=1) * size
    every = configuration.checkpointing.every_n_layers
    recompute = 1 + (job.recompute_fraction / every if every else 0.0)
    growth = 1 + job.growth_per_doubling * np.log2(size)
    times: np.ndarray[tuple[int], np.dtype[np.float64]] = (
        job.s_per_step
        + job.s_per_micro_batch * configuration.accumulation_steps
        + job.s_per_token * padded_tokens * recompute * growth
    )
    return times


def measured(
    times_s: np.ndarray[tuple[int], np.dtype[np.float64]] | list[float],
    samples: int,
    total_bytes: int = 1000 * MIB,
) -> Measured:
    """A measured outcome from step times."""
    speed = Speed(
        step_times_s=tuple(float(t) for t in times_s),
        step_samples=(samples,) * len(times_s),
        step_tokens=(samples * 10,) * len(times_s),
    )
    return Measured(
        speed=speed,
        memory=MemoryUse(
            allocated_bytes=total_bytes,
            reserved_bytes=total_bytes,
            outside_bytes=0,
            total_bytes=total_bytes,
            method="made up",
        ),
        samples_per_s=speed.samples_per_s,
        samples_per_s_ci95=samples_per_s_interval(speed),
    )
