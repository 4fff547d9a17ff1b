"""What timed steps can say: a rate with its interval, the ratio of two configurations, a tie.

Every configuration trains on the same global batches, so they are compared batch by batch: what one
batch costs more than another cancels out, and a step that something else on the machine held up
counts little.

Two sides that were measured alternately are compared by `ratio_of_times`: a trimmed mean of
log-ratios with the interval of Tukey and McLaughlin ("Less vulnerable confidence and significance
procedures for location based on a single sample", Sankhyā A 25, 1963). All trials of a search are
compared by `Levels`: Tukey's median polish ("Exploratory Data Analysis", 1977, chapter 11) takes
the batches out, then each trial's level is Huber's estimate under the spread that all share, so
that a few steps a trial are enough to tell a held-up step from a slow configuration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.outcome import Interval, Speed
from autotune.quantile import t975

TRIM_FRACTION = 0.2
"""Part of the sorted log-ratios that is left out at each end."""
TIE_AT_LEAST = 0.005
"""Differences below this are ties however narrow the interval: it covers the steps of one trial,
and not what changes between two trials of the same configuration."""
TIE_AT_MOST = 0.015
"""Differences above this are no ties however wide the interval: they are unsettled, and giving
them away for memory could cost more than is promised."""
HUBER_CUTOFF = 1.5
"""Spreads beyond which a step counts less; keeps 96 % of the efficiency under normal noise."""
NORMAL_SPREAD = 1.4826
"""Standard deviation of a normal variable over the median of its size."""
ONE_STEP_FACTOR = 2.0
"""How far off, by factor, a rate may be of which only one step was timed."""

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio with its 95 % interval."""

    value: float
    low: float
    high: float
    num_pairs: int

    @property
    def half_width(self) -> float:
        """Half the interval, relative to its middle."""
        return math.sqrt(self.high / self.low) - 1

    @property
    def interval(self) -> Interval:
        """Lower and upper end."""
        return (self.low, self.high)

    @property
    def is_tie(self) -> bool:
        """Whether the two sides are the same for a choice between them.

        The difference lies inside the noise: below the interval's half width, but at least
        `TIE_AT_LEAST` and at most `TIE_AT_MOST`.
        """
        noise = min(max(self.half_width, TIE_AT_LEAST), TIE_AT_MOST)
        return abs(math.log(self.value)) <= math.log1p(noise)

    @property
    def is_faster(self) -> bool:
        """Whether the first side is faster by more than a tie."""
        return self.value > 1 and not self.is_tie

    @property
    def is_slower(self) -> bool:
        """Whether the first side is slower by more than a tie."""
        return self.value < 1 and not self.is_tie

    def times(self, factor: float) -> Ratio:
        """The same ratio where the first side counts `factor` times as much."""
        return Ratio(
            value=self.value * factor,
            low=self.low * factor,
            high=self.high * factor,
            num_pairs=self.num_pairs,
        )

    @property
    def inverse(self) -> Ratio:
        """The same comparison seen from the other side."""
        return Ratio(
            value=1 / self.value, low=1 / self.high, high=1 / self.low, num_pairs=self.num_pairs
        )


def settled(ratio: Interval, half_width: float) -> bool:
    """Whether the interval of a ratio is at most ± `half_width`, relative to its middle."""
    low, high = ratio
    return low > 0 and math.sqrt(high / low) - 1 <= half_width


def samples_per_s_interval(speed: Speed) -> Interval:
    """95 % interval of samples over seconds, over all timed steps.

    The standard error is that of a ratio of sums (Cochran, "Sampling Techniques", 3rd edition,
    section 6.3), taken on the logarithm so that the interval stays positive.
    """
    times_s = np.asarray(speed.step_times_s, dtype=float)
    samples = np.asarray(speed.step_samples, dtype=float)
    rate = float(samples.sum() / times_s.sum())
    num_steps = len(times_s)
    if num_steps < 2:
        return (rate / ONE_STEP_FACTOR, rate * ONE_STEP_FACTOR)
    residuals = samples - rate * times_s
    error = float(np.sqrt((residuals**2).sum() / (num_steps - 1) / num_steps) / samples.mean())
    factor = math.exp(min(t975(num_steps - 1) * error, 50.0))
    return (rate / factor, rate * factor)


def ratio_of_times(first_s: Sequence[float], second_s: Sequence[float]) -> Ratio:
    """How many times as fast the first side is, from the times of pairs that do the same work.

    Raises:
        ValueError: The two sides differ in length, or are empty.
    """
    if len(first_s) != len(second_s) or not first_s:
        raise ValueError(f"{len(first_s)} times cannot be paired with {len(second_s)}.")
    return _trimmed_ratio(np.log(np.asarray(second_s)) - np.log(np.asarray(first_s)))


class Levels:
    """How fast several trials are relative to each other, over the batches that they share.

    The n-th step of each trains on the same global batch; trials may differ in their number of
    steps.
    """

    def __init__(self, speeds: Sequence[Speed]) -> None:
        if not speeds:
            return
        num_batches = max(len(speed.step_times_s) for speed in speeds)
        table = np.full((len(speeds), num_batches), np.nan)
        for row, speed in zip(table, speeds, strict=True):
            rates = np.asarray(speed.step_samples) / np.asarray(speed.step_times_s)
            row[: len(rates)] = np.log(rates)
        # A batch that only one trial has trained on compares nothing.
        table = table[:, np.isfinite(table).sum(axis=0) > 1] if len(speeds) > 1 else table
        levels, batches = _median_polish(table)
        adjusted = table - batches
        spread, self._degrees_of_freedom = _spread(adjusted - levels[:, None])
        self._levels, self._errors = _huber(adjusted, levels, spread)
        self._num_steps = np.isfinite(table).sum(axis=1)

    def ratio(self, first: int, second: int) -> Ratio:
        """How many times as fast the trial at place `first` is as the one at `second`."""
        center = float(self._levels[first] - self._levels[second])
        if self._degrees_of_freedom < 1:
            width = math.log(ONE_STEP_FACTOR)
        else:
            error = math.hypot(self._errors[first], self._errors[second])
            width = min(t975(self._degrees_of_freedom) * error, 50.0)
        if first == second:
            width = 0.0
        return Ratio(
            value=math.exp(center),
            low=math.exp(center - width),
            high=math.exp(center + width),
            num_pairs=int(min(self._num_steps[first], self._num_steps[second])),
        )


def _median_polish(table: Array, num_rounds: int = 10) -> tuple[Array, Array]:
    """Levels of the rows and of the columns, by medians; gaps are NaN."""
    levels = np.zeros(len(table))
    batches = np.zeros(table.shape[1])
    for _ in range(num_rounds):
        levels = np.nanmedian(table - batches, axis=1)
        batches = np.nanmedian(table - levels[:, None], axis=0)
    return levels, batches


def _spread(residuals: Array) -> tuple[float, int]:
    """Standard deviation of the residuals by their median size, and its degrees of freedom.

    A fit by medians makes about as many residuals zero as it has levels; they say nothing of the
    spread and are left out (Birkes and Dodge, "Alternative Methods of Regression", 1993, ch. 4).
    """
    sizes = np.sort(np.abs(residuals[np.isfinite(residuals)]))
    num_rows, num_columns = residuals.shape
    num_fitted = num_rows + num_columns - 1
    degrees_of_freedom = len(sizes) - num_fitted
    if degrees_of_freedom < 1:
        return 0.0, 0
    return float(NORMAL_SPREAD * np.median(sizes[num_fitted:])), degrees_of_freedom


def _huber(
    adjusted: Array, levels: Array, spread: float, num_rounds: int = 10
) -> tuple[Array, Array]:
    """Huber's estimate of each row and its standard error, under a known spread."""
    if spread == 0.0:
        return levels, np.zeros_like(levels)
    is_there = np.isfinite(adjusted)
    weights = is_there.astype(float)
    for _ in range(num_rounds):
        sizes = np.abs(np.where(is_there, adjusted - levels[:, None], 0.0))
        weights = is_there * np.minimum(1.0, HUBER_CUTOFF * spread / np.maximum(sizes, 1e-300))
        levels = (weights * np.nan_to_num(adjusted)).sum(axis=1) / weights.sum(axis=1)
    return levels, spread / np.sqrt(weights.sum(axis=1))


def _trimmed_ratio(logs: Array) -> Ratio:
    num_pairs = len(logs)
    num_cut = int(TRIM_FRACTION * num_pairs)
    ordered = np.sort(logs)
    kept = ordered[num_cut : num_pairs - num_cut]
    center = float(kept.mean())
    if num_pairs < 2:
        width = math.log(ONE_STEP_FACTOR)
    else:
        winsorized = np.clip(ordered, kept[0], kept[-1])
        error = float(winsorized.std(ddof=1)) / (
            (1 - 2 * num_cut / num_pairs) * math.sqrt(num_pairs)
        )
        width = min(t975(num_pairs - 2 * num_cut - 1) * error, 50.0)
    return Ratio(
        value=math.exp(center),
        low=math.exp(center - width),
        high=math.exp(center + width),
        num_pairs=num_pairs,
    )
