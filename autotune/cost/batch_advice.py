"""What must change along with the global batch size, and what clipping means under local SGD."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autotune.cost.learning import OptimizerKind, batch_efficiency
from autotune.cost.noise import NoiseScale
from autotune.outcome import Interval
from autotune.workload.facts import NOTHING_KNOWN, Hyperparameters

CLIPS_AS_BEFORE = 1.01
"""A gradient less than this many times as long is clipped as before."""

Setting: TypeAlias = Literal[
    "learning_rate", "max_steps", "warmup_steps", "adam_beta2", "weight_decay"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """One setting under the new global batch size."""

    setting: Setting
    """As `TrainingArguments` calls it."""
    factor: float | None
    """New value over old; None where it is no factor."""
    old: float | None
    """None where the present value is not known."""
    new: float | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAdvice:
    """What must change together with the global batch size."""

    old: int
    """Global batch size now."""
    new: int
    gain: float
    """How many optimizer steps at the old size one step at the new size is worth."""
    gain_interval: Interval
    changes: tuple[SettingChange, ...]
    """Those that are not known to apply are left out."""
    sentences: tuple[str, ...]
    """The whole advice for reading."""


def gain(old: int, new: int, noise_scale: NoiseScale | None) -> tuple[float, Interval]:
    """How many optimizer steps at the old size one step at the new size is worth.

    `(sigma² + mu²) / (sigma² / s + mu²)` at s times the batch size, with the noise and the mean of
    the gradient at the old one (Johnson et al. 2020, "AdaScale SGD", arXiv 2007.05105). In rows
    this is s times the sample efficiency, between 1 and s.

    Returns:
        The cautious value and both ends.
    """
    efficiency = batch_efficiency(new, old, noise_scale)
    scale = new / old
    low, high = efficiency.interval
    return scale * efficiency.value, (scale * low, scale * high)


def learning_rate_factor(scale: float, gained: float, optimizer: OptimizerKind) -> float:
    """By what to multiply the learning rate at `scale` times the global batch size.

    SGD: linear in the batch size as long as noise dominates, which AdaScale bounds by its gain
    (arXiv 2007.05105). Adam and other adaptive optimizers: the square root (Malladi et al. 2022,
    "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", arXiv 2205.10287), bounded by
    the gain as well. A smaller batch is the same change seen from its other end.

    Args:
        scale: New global batch size over the old one.
        gained: The gain at that scale.
        optimizer: The optimizer that trains.
    """
    if scale < 1:
        return 1 / learning_rate_factor(1 / scale, 1 / gained, optimizer)
    return min(scale if optimizer == "sgd" else math.sqrt(scale), gained)


def advice_for_batch(
    old: int,
    new: int,
    *,
    optimizer: OptimizerKind,
    noise_scale: NoiseScale | None,
    present: Hyperparameters = NOTHING_KNOWN,
) -> BatchAdvice:
    """What must change together with the global batch size so that training stays comparable.

    Args:
        old: Global batch size now.
        new: The other one.
        optimizer: The optimizer that trains.
        noise_scale: In rows; None where it was not measured, and then the learning rate stays for a
            larger batch, which is the cautious end.
        present: The job's settings, as far as they are known.
    """
    scale = new / old
    gained, interval = gain(old, new, noise_scale)
    if new == old:
        return BatchAdvice(
            old=old,
            new=new,
            gain=gained,
            gain_interval=interval,
            changes=(),
            sentences=("The global batch size stays, and so does everything that goes with it.",),
        )
    changes = [
        _learning_rate(scale, gained, interval, optimizer, present.learning_rate),
        _steps("max_steps", scale, present.max_steps),
    ]
    if present.warmup_steps is None or present.warmup_steps > 0:
        changes.append(_steps("warmup_steps", scale, present.warmup_steps))
    if optimizer == "adam":
        changes.append(_beta2(scale, present.adam_beta2))
    if present.weight_decay is None or present.weight_decay > 0:
        rate = changes[0].factor or 1.0
        changes.append(_weight_decay(scale, rate, present.weight_decay))
    return BatchAdvice(
        old=old,
        new=new,
        gain=gained,
        gain_interval=interval,
        changes=tuple(changes),
        sentences=(
            f"From a global batch size of {old} to {new}: one optimizer step is worth "
            f"{gained:.3g} of before ({interval[0]:.3g} to {interval[1]:.3g}), so that learning as "
            f"much takes {_factor(scale / gained)} the samples.",
            *(change.sentence for change in changes),
        ),
    )


def _factor(factor: float) -> str:
    return f"{factor:.3g} times"


def _change(old: float | None, new: float | None) -> str:
    return "" if old is None or new is None else f" ({old:.4g} → {new:.4g})"


def _learning_rate(
    scale: float,
    gained: float,
    interval: Interval,
    optimizer: OptimizerKind,
    old: float | None,
) -> SettingChange:
    factor = learning_rate_factor(scale, gained, optimizer)
    ends = sorted(learning_rate_factor(scale, end, optimizer) for end in interval)
    rule = "in proportion to the batch" if optimizer == "sgd" else "by the square root of the batch"
    new = None if old is None else old * factor
    return SettingChange(
        setting="learning_rate",
        factor=factor,
        old=old,
        new=new,
        sentence=f"Learning rate: {_factor(factor)}{_change(old, new)}, {rule}, as far as noise "
        f"carries it ({ends[0]:.3g} to {ends[1]:.3g}).",
    )


def _steps(
    setting: Literal["max_steps", "warmup_steps"], scale: float, old: int | None
) -> SettingChange:
    new = None if old is None else max(1, round(old / scale))
    what = "Steps of the schedule" if setting == "max_steps" else "Warm-up steps"
    return SettingChange(
        setting=setting,
        factor=1 / scale,
        old=old,
        new=new,
        sentence=f"{what}: {_factor(1 / scale)}{_change(old, new)}, for the same samples.",
    )


def _beta2(scale: float, old: float | None) -> SettingChange:
    """The half-life of Adam's second moments stays the same in samples.

    One step forgets by `beta2`, so s times the samples a step are to forget by `beta2 ** s` (Marek
    et al. 2025, arXiv 2507.07101, who fix the half-life in tokens).
    """
    new = None if old is None else old**scale
    return SettingChange(
        setting="adam_beta2",
        factor=None,
        old=old,
        new=new,
        sentence=f"Adam's beta2: to the power of {scale:.3g}{_change(old, new)}, so that its "
        "memory is as many samples long as before.",
    )


def _weight_decay(scale: float, rate: float, old: float | None) -> SettingChange:
    """The timescale of weight decay in samples, `B / (learning rate · weight decay)`, stays.

    Bergsma et al. 2025, "Power Lines", arXiv 2505.13738: at a fixed rate, decay goes with B.
    """
    factor = scale / rate
    new = None if old is None else old * factor
    return SettingChange(
        setting="weight_decay",
        factor=factor,
        old=old,
        new=new,
        sentence=f"Weight decay: {_factor(factor)}{_change(old, new)}, which goes with the "
        "learning rate above and keeps its effect per sample.",
    )


def clipping_ratio(noise_scale: float, rows_per_rank: int, num_ranks: int) -> float:
    """Expected norm of one rank's gradient over that of the mean gradient of all ranks.

    A gradient over n rows has the expected squared norm `|G|² (1 + phi / n)`, so the ratio is
    `sqrt((1 + phi / b) / (1 + phi / (P b)))` for P ranks of b rows; between 1 and `sqrt(P)`.

    Args:
        noise_scale: Of the plain gradient, in rows: clipping looks at no other.
        rows_per_rank: Rows that each rank's optimizer step trains on.
        num_ranks: Ranks that train together.
    """
    if math.isinf(noise_scale):
        return math.sqrt(num_ranks)
    return math.sqrt(
        (1 + noise_scale / rows_per_rank) / (1 + noise_scale / (num_ranks * rows_per_rank))
    )


def advice_for_clipping(
    noise_scale: tuple[float, float | None] | None,
    *,
    rows_per_rank: int,
    num_ranks: int,
    max_grad_norm: float | None,
) -> str:
    """What becomes of the clipping threshold when ranks step by themselves, in a sentence.

    Args:
        noise_scale: Both ends of that of the plain gradient, in rows; None where it was not
            measured.
        rows_per_rank: Rows that each rank's optimizer step trains on.
        num_ranks: Ranks that train together.
        max_grad_norm: The present threshold; None where it is not known.
    """
    lower, upper = noise_scale or (0.0, None)
    low = clipping_ratio(lower, rows_per_rank, num_ranks)
    high = clipping_ratio(math.inf if upper is None else upper, rows_per_rank, num_ranks)
    each = f"Each of {num_ranks} ranks clips its own gradient, which"
    if low < CLIPS_AS_BEFORE:
        return (
            f"{each} may be up to {high:.3g} times as long as their mean: the same max_grad_norm "
            "clips more, and by how much depends on a noise scale that is not known."
        )
    new = None if max_grad_norm is None else max_grad_norm * low
    return (
        f"{each} is expected to be {low:.3g} to {high:.3g} times as long as their mean: {low:.3g} "
        f"times max_grad_norm{_change(max_grad_norm, new)} makes up for the least of it."
    )
