"""Sample efficiency: what a sample teaches under another global batch size, or under local SGD.

Everything is relative to the reference, which is the user's own global batch size under plain data
parallel training. Nothing assumed is ever passed off as measured: `basis` says which it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autotune.cost.noise import NoiseScale
from autotune.outcome import Interval

Basis: TypeAlias = Literal["measured", "assumed", "not needed"]
OptimizerKind: TypeAlias = Literal["sgd", "adam", "other"]
"""What decides how training reacts to batch size and averaging: SGD with or without momentum,
Adam and its kin, or anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEfficiency:
    """Useful learning per sample against the reference.

    Between 0 and 1, except for a global batch below the reference's, whose samples teach more.
    """

    value: float
    """What decisions use: the cautious end of what is known."""
    interval: Interval
    basis: Basis

    def times(self, other: SampleEfficiency) -> SampleEfficiency:
        """Both effects together. The basis is the weaker of the two."""
        bases = {self.basis, other.basis}
        basis: Basis = (
            "assumed" if "assumed" in bases else "measured" if "measured" in bases else "not needed"
        )
        return SampleEfficiency(
            value=self.value * other.value,
            interval=(
                self.interval[0] * other.interval[0],
                self.interval[1] * other.interval[1],
            ),
            basis=basis,
        )

    def to_json(self) -> dict[str, object]:
        """The public JSON form."""
        return {"value": self.value, "interval": list(self.interval), "basis": self.basis}

    def __str__(self) -> str:
        if self.basis == "not needed":
            return "1"
        low, high = self.interval
        return f"{self.value:.2f} ({low:.2f} to {high:.2f}, {self.basis})"


NOT_NEEDED = SampleEfficiency(value=1.0, interval=(1.0, 1.0), basis="not needed")
"""The reference itself, and whatever trains exactly as it does."""


def optimizer_kind(name: str) -> OptimizerKind:
    """The kind of an optimizer by its name in `TrainingArguments.optim`, or that of its class."""
    lowered = name.lower()
    if lowered == "sgd":
        return "sgd"
    return "adam" if "adam" in lowered else "other"


def batch_efficiency(
    global_batch_size: int, reference: int, noise_scale: NoiseScale | None
) -> SampleEfficiency:
    """Sample efficiency of a global batch size: `(phi + B0) / (phi + B)`.

    To the same loss, training at batch size B takes `1 + B / phi` times the fewest samples possible
    (McCandlish et al. 2018, arXiv 1812.06162, the trade-off of data against time); dividing that of
    the reference by that of B gives the formula, which is also Pollux's statistical efficiency
    (arXiv 2008.12260). It presumes a learning rate that goes with the batch size:
    see `autotune.cost.batch_advice`.

    The noise scale is used at the end that claims least: the lower one above the reference, the
    upper one below it. Without a noise scale the lower bound 0 stands, under which a larger batch
    teaches no more than the reference's did.

    Args:
        global_batch_size: B, samples per optimizer step over all ranks.
        reference: B0, the user's own.
        noise_scale: In rows; None where it was not measured.
    """
    if global_batch_size == reference:
        return NOT_NEEDED
    lower, upper = (
        (0.0, math.inf) if noise_scale is None else (noise_scale.lower, noise_scale.upper)
    )
    ends = [_batch_efficiency(global_batch_size, reference, phi) for phi in (lower, upper)]
    is_known = noise_scale is not None and noise_scale.value is not None
    return SampleEfficiency(
        value=min(ends),
        interval=(min(ends), max(ends)),
        basis="measured" if is_known else "assumed",
    )


def _batch_efficiency(global_batch_size: int, reference: int, phi: float) -> float:
    return 1.0 if math.isinf(phi) else (phi + reference) / (phi + global_batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSGDModel:
    """How sample efficiency falls with the number of local SGD steps: `E_1 / (1 + kappa (H-1))`.

    The linear denominator is the form of the penalty term in the convergence bound of Wang and
    Joshi (2019, "AdaComm", arXiv 1810.08313), which grows with H - 1. `E_1` is what averaging after
    every single step loses already against averaging gradients. No trial is long enough to measure
    either, so that what follows from them is always called assumed.
    """

    first: float
    """E_1."""
    first_interval: Interval
    kappa: float
    """Loss per further local step."""
    kappa_interval: Interval

    def efficiency(self, local_sgd_steps: int) -> SampleEfficiency:
        """Sample efficiency at a number of local SGD steps; 1 is plain data parallel training."""
        if local_sgd_steps == 1:
            return NOT_NEEDED
        more = local_sgd_steps - 1
        return SampleEfficiency(
            value=self.first / (1 + self.kappa * more),
            interval=(
                self.first_interval[0] / (1 + self.kappa_interval[1] * more),
                self.first_interval[1] / (1 + self.kappa_interval[0] * more),
            ),
            basis="assumed",
        )


KAPPA = 0.004
KAPPA_INTERVAL = (0.003, 0.005)
"""Two runs of one small language model under AdamW, at 16 and at 64 local steps, both gave 0.0033;
nothing is known of other models."""
FIRST_ADAPTIVE = 0.9
FIRST_ADAPTIVE_INTERVAL = (0.75, 1.0)
"""The same model under AdamW kept 0.88 at one local step, in a single run."""


def assumed_local_sgd(optimizer: OptimizerKind, *, clips: bool) -> LocalSGDModel:
    """What is assumed of local SGD where nobody has measured it for this job.

    The mean of steps along gradients is the step along their mean, so that SGD, with or without
    momentum, loses nothing by averaging weights instead of gradients after each step. Adam divides
    by each rank's own second moments, and clipping shortens each rank's own gradient; neither
    commutes with a mean.

    Args:
        optimizer: The optimizer that trains.
        clips: Whether gradients are clipped.
    """
    is_exact = optimizer == "sgd" and not clips
    return LocalSGDModel(
        first=1.0 if is_exact else FIRST_ADAPTIVE,
        first_interval=(1.0, 1.0) if is_exact else FIRST_ADAPTIVE_INTERVAL,
        kappa=KAPPA,
        kappa_interval=KAPPA_INTERVAL,
    )
