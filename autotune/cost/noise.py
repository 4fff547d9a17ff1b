"""The gradient noise scale: how many rows a gradient needs before more of them stop helping.

McCandlish et al. 2018 ("An Empirical Model of Large-Batch Training", arXiv 1812.06162) call
`phi = tr(Sigma) / |G|²` the simple noise scale, where `G` is the gradient over all data and `Sigma`
the covariance of the gradient of one row. Their appendix A.1 gets both unbiased from the squared
norms of gradients over two batch sizes. With the k micro-gradients of b rows that one optimizer
step makes anyway, and their mean, the two sizes are b and k·b (Qiao et al. 2021, "Pollux", arXiv
2008.12260, measure goodput by the same algebra):

    |G|²      ≈ (k · |mean|² - mean of |g_i|²) / (k - 1)
    tr(Sigma) ≈ (mean of |g_i|² - |mean|²) · k·b / (k - 1)

Both are averaged over a window of steps, each for itself, and only then divided. The ratio of two
averages is still biased in first order of the number of steps; Beale's ratio estimator takes that
off (Tin 1965, "Comparison of some ratio estimators", J. Amer. Statist. Assoc. 60). The interval is
a bootstrap over whole steps. With few of them it would be too narrow; resamples of one step fewer
and tails as thin as Student's t would have them make up for that (Hesterberg 2015, "What teachers
should know about the bootstrap", The American Statistician 69).

Under Adam the step is not along the gradient but along the gradient divided by `sqrt(v) + eps`, so
the noise that matters is that of the preconditioned gradient; the algebra is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.configuration import Configuration
from autotune.outcome import GradientNorms
from autotune.quantile import t975

LEAST_WINDOWS = 5
"""Optimizer steps below which nothing is estimated."""
PRECISE_RATIO = 0.6
"""Up to this `phi / (k · b · sqrt(K))`, over K steps, the estimate is good to about ±20 %."""
NUM_RESAMPLES = 4000

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """A gradient noise scale, in rows, with its 95 % interval.

    It grows while training goes on, often by a factor of several, and a trial sees the beginning:
    so its lower end is what decisions rest on.
    """

    value: float | None
    """None where it is unknown: the mean gradient did not stand out from the noise."""
    interval: tuple[float, float | None]
    """Lower end, 0 where nothing is known; upper end, None where there is none."""
    num_windows: int
    """Optimizer steps that it was estimated from."""
    num_micro_batches: int
    """Micro-gradients of each step, over all ranks."""
    rows_per_micro_batch: int
    is_preconditioned: bool
    """Whether gradients were divided as Adam divides its step."""
    note: str
    """What it rests on, in a sentence."""

    @property
    def lower(self) -> float:
        """The lower end of the interval, in rows."""
        return self.interval[0]

    @property
    def upper(self) -> float:
        """The upper end of the interval, in rows; infinite where there is none."""
        return math.inf if self.interval[1] is None else self.interval[1]

    @property
    def is_precise(self) -> bool:
        """Whether it is known to about ±20 %, drift during training apart."""
        return self.value is not None and self.num_windows >= windows_for(
            self.value, self.num_micro_batches, self.rows_per_micro_batch
        )


def has_pair(configuration: Configuration) -> bool:
    """Whether an optimizer step makes the two micro-gradients that an estimate needs."""
    return configuration.accumulation_steps * configuration.world_size >= 2


def windows_for(noise_scale: float, num_micro_batches: int, rows_per_micro_batch: int) -> int:
    """Optimizer steps after which a noise scale is known to about ±20 %.

    A rule of thumb: the relative half width of the middle 80 % of the estimates was about
    `0.35 · phi / (k · b · sqrt(K))` on a small language model, and not below `0.5 / sqrt(K)`.

    Args:
        noise_scale: Rows, as far as it is known.
        num_micro_batches: Micro-gradients of each step, over all ranks.
        rows_per_micro_batch: Rows of each.
    """
    by_noise = noise_scale / (PRECISE_RATIO * num_micro_batches * rows_per_micro_batch)
    return max(math.ceil(by_noise**2), math.ceil((0.5 / 0.2) ** 2))


def estimate_noise_scale(
    gradients: GradientNorms, *, preconditioned: bool, seed: int = 0
) -> NoiseScale:
    """The noise scale over the measured steps.

    Args:
        gradients: From one stretch of training.
        preconditioned: Whether to use the norms of preconditioned gradients, as Adam-type
            optimizers ask for; where too few steps have them, the plain ones are used and the note
            says so.
        seed: Of the bootstrap.
    """
    k, rows = gradients.num_micro_batches, gradients.rows_per_micro_batch
    notes: list[str] = []
    pairs: list[tuple[int, float, float]] = []
    if preconditioned:
        pairs = [
            (w.step, float(np.mean(micro)), whole)
            for w in gradients.windows
            if (micro := w.preconditioned_micro_squared_norms) is not None
            and (whole := w.preconditioned_mean_squared_norm) is not None
        ]
    is_preconditioned = len(pairs) >= LEAST_WINDOWS
    if not is_preconditioned:
        if preconditioned:
            notes.append(
                "the optimizer's second moments could not be read, so that it is that of the plain "
                "gradient"
            )
        pairs = [
            (w.step, float(np.mean(w.micro_squared_norms)), w.mean_squared_norm)
            for w in gradients.windows
        ]

    def result(value: float | None, interval: tuple[float, float | None]) -> NoiseScale:
        steps = f" at steps {pairs[0][0]} to {pairs[-1][0]}" if pairs else ""
        note = f"from {len(pairs)} optimizer steps of {k} × {rows} rows{steps}"
        return NoiseScale(
            value=value,
            interval=interval,
            num_windows=len(pairs),
            num_micro_batches=k,
            rows_per_micro_batch=rows,
            is_preconditioned=is_preconditioned,
            note="; ".join([note, *notes]),
        )

    if len(pairs) < LEAST_WINDOWS:
        notes.append(f"unknown: {LEAST_WINDOWS} optimizer steps are the least")
        return result(None, (0.0, None))
    table = np.asarray([(micro, whole) for _, micro, whole in pairs])
    squared_norm, variance = pair_estimates(table[:, 0], table[:, 1], k, rows)
    value = _beale(variance, squared_norm)
    if value is None:
        notes.append("unknown: the mean gradient does not stand out from the noise")
        return result(None, (0.0, None))
    low, high = _bootstrap(variance, squared_norm, seed)
    value = min(max(value, low), high)
    needed = windows_for(value, k, rows)
    if len(pairs) < needed:
        notes.append(f"{needed} would tell it to about ±20 %")
    return result(value, (low, None if math.isinf(high) else high))


def pair_estimates(
    micro: Array, whole: Array, num_micro_batches: int, rows_per_micro_batch: int
) -> tuple[Array, Array]:
    """Unbiased estimates of `|G|²` and of `tr(Sigma)` per row, one for each step.

    The first may be negative, where noise hides the gradient.

    Args:
        micro: Mean squared norm of the micro-gradients of each step.
        whole: Squared norm of their mean.
        num_micro_batches: Micro-gradients of each step; at least 2.
        rows_per_micro_batch: Rows of each.
    """
    k = num_micro_batches
    squared_norm = (k * whole - micro) / (k - 1)
    variance = (micro - whole) * k * rows_per_micro_batch / (k - 1)
    return squared_norm, variance


def _beale(numerator: Array, denominator: Array) -> float | None:
    """The ratio of two means without its first-order bias; None where it says nothing."""
    num = len(numerator)
    top, bottom = float(numerator.mean()), float(denominator.mean())
    if not bottom > 0:
        return None
    covariance = np.cov(numerator, denominator) / num
    ratio = (top + float(covariance[0, 1]) / bottom) / (bottom + float(covariance[1, 1]) / bottom)
    return ratio if math.isfinite(ratio) and ratio >= 0 else None


def _bootstrap(numerator: Array, denominator: Array, seed: int) -> tuple[float, float]:
    """95 % interval of a ratio of means; a resample without a positive denominator is infinite."""
    num = len(numerator)
    chosen = np.random.default_rng(seed).integers(0, num, (NUM_RESAMPLES, num - 1))
    tops, bottoms = numerator[chosen].mean(axis=1), denominator[chosen].mean(axis=1)
    ratios = np.full(NUM_RESAMPLES, math.inf)
    np.divide(tops, bottoms, out=ratios, where=bottoms > 0)
    # The part of a normal distribution beyond the quantile of Student's t.
    tail = math.erfc(t975(num - 1) / math.sqrt(2)) / 2
    # Without interpolation, which has no meaning between a number and infinity.
    low = float(np.quantile(ratios, tail, method="lower"))
    high = float(np.quantile(ratios, 1 - tail, method="higher"))
    return (0.0 if math.isinf(low) else low), high
