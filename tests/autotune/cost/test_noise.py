"""The estimator against gradients whose noise scale is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.configuration import Configuration
from autotune.cost.noise import (
    NoiseScale,
    estimate_noise_scale,
    has_pair,
    pair_estimates,
    windows_for,
)
from autotune.outcome import GradientNorms
from tests.autotune.cost.builders import from_gradients, gradients


def estimate(norms: GradientNorms, seed: int = 0) -> NoiseScale:
    return estimate_noise_scale(norms, preconditioned=False, seed=seed)


def with_preconditioned(norms: GradientNorms, factor: float, *, after: int) -> GradientNorms:
    """Preconditioned norms whose micro-gradients are so many times as large as the plain ones."""
    return replace(
        norms,
        windows=tuple(
            window
            if index < after
            else replace(
                window,
                preconditioned_micro_squared_norms=tuple(
                    factor * norm for norm in window.micro_squared_norms
                ),
                preconditioned_mean_squared_norm=window.mean_squared_norm,
            )
            for index, window in enumerate(norms.windows)
        ),
    )


def test_the_pair_by_hand() -> None:
    # Two gradients over 4 rows each, (3, 0) and (1, 2): squared norms 9 and 5, mean (2, 1).
    # |G|² = 2·5 - 7 = 3 = the product of the two; tr(Sigma) = (7 - 5)·2·4 = 16.
    squared_norm, variance = pair_estimates(np.array([7.0]), np.array([5.0]), 2, 4)
    assert squared_norm.tolist() == [3.0]
    assert variance.tolist() == [16.0]


def test_both_estimates_are_unbiased() -> None:
    rng = np.random.default_rng(1)
    norms = gradients(30.0, num_windows=10_000, num_micro_batches=3, rows=2, rng=rng)
    micro = np.array([np.mean(window.micro_squared_norms) for window in norms.windows])
    whole = np.array([window.mean_squared_norm for window in norms.windows])
    squared_norm, variance = pair_estimates(micro, whole, 3, 2)
    assert squared_norm.mean() == pytest.approx(1.0, rel=0.1)
    assert variance.mean() == pytest.approx(30.0, rel=0.01)


@pytest.mark.parametrize(
    ("phi", "num_micro_batches", "rows", "num_windows"),
    [(31.0, 2, 8, 20), (31.0, 8, 1, 20), (31.0, 2, 8, 50), (4.0, 4, 8, 20), (300.0, 8, 8, 20)],
)
def test_the_interval_covers_the_truth_and_the_value_is_right_on_average(
    phi: float, num_micro_batches: int, rows: int, num_windows: int
) -> None:
    rng = np.random.default_rng(7)
    found = [
        estimate(
            gradients(
                phi,
                num_windows=num_windows,
                num_micro_batches=num_micro_batches,
                rows=rows,
                rng=rng,
            )
        )
        for _ in range(200)
    ]
    covered = np.mean([scale.lower <= phi <= scale.upper for scale in found])
    assert covered >= 0.92
    values = [scale.value for scale in found if scale.value is not None]
    assert len(values) >= 196
    assert np.mean(values) == pytest.approx(phi, rel=0.05)
    assert np.mean([scale.lower > phi for scale in found]) <= 0.05


def test_a_gradient_below_its_noise_is_unknown_or_wide() -> None:
    rng = np.random.default_rng(3)
    found = [
        estimate(gradients(3000.0, num_windows=10, num_micro_batches=2, rows=1, rng=rng))
        for _ in range(100)
    ]
    unknown = [scale for scale in found if scale.value is None]
    assert 20 <= len(unknown) <= 80
    assert {(scale.interval, scale.lower, scale.upper) for scale in unknown} == {
        ((0.0, None), 0.0, math.inf)
    }
    assert all("does not stand out" in scale.note for scale in unknown)
    assert not any(scale.is_precise for scale in found)
    known = [scale for scale in found if scale.value is not None]
    assert np.mean([scale.lower <= 3000.0 <= scale.upper for scale in known]) >= 0.85


def test_a_pure_gradient_has_no_noise() -> None:
    norms = from_gradients(np.ones((6, 4, 3)), rows=8)
    scale = estimate(norms)
    assert scale.value == pytest.approx(0.0, abs=1e-12)
    assert scale.interval == pytest.approx((0.0, 0.0), abs=1e-12)


@given(factor=st.floats(1e-6, 1e6), seed=st.integers(0, 50))
def test_the_unit_of_the_loss_does_not_matter(factor: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    micro = np.array([1.0, 0.0]) + rng.standard_normal((8, 3, 2))
    first, second = (estimate(from_gradients(m, rows=5)) for m in (micro, micro * factor))
    assert (first.value is None) == (second.value is None)
    if first.value is not None:
        assert second.value == pytest.approx(first.value, rel=1e-6)
        assert second.lower == pytest.approx(first.lower, rel=1e-6)


@given(seed=st.integers(0, 1000), num_micro_batches=st.integers(2, 6))
def test_the_value_lies_in_its_interval(seed: int, num_micro_batches: int) -> None:
    rng = np.random.default_rng(seed)
    micro = np.array([0.7, 0.0, 0.0]) + rng.standard_normal((7, num_micro_batches, 3))
    scale = estimate(from_gradients(micro, rows=2))
    assert scale.lower >= 0
    if scale.value is not None:
        assert scale.lower <= scale.value <= scale.upper


def test_the_same_seed_gives_the_same_interval() -> None:
    norms = gradients(
        31.0, num_windows=20, num_micro_batches=2, rows=8, rng=np.random.default_rng(0)
    )
    assert estimate(norms) == estimate(norms)
    assert estimate(norms, seed=1).interval != estimate(norms).interval
    assert estimate(norms, seed=1).value == estimate(norms).value


def test_few_steps_say_nothing() -> None:
    norms = gradients(1.0, num_windows=4, num_micro_batches=2, rows=8, rng=np.random.default_rng(0))
    scale = estimate(norms)
    assert (scale.value, scale.interval, scale.num_windows) == (None, (0.0, None), 4)
    assert "5 optimizer steps are the least" in scale.note
    nothing = estimate(replace(norms, windows=()))
    assert (nothing.value, nothing.num_windows) == (None, 0)
    assert nothing.note.startswith("from 0 optimizer steps of 2 × 8 rows;")


def test_adam_asks_for_preconditioned_norms_where_they_are() -> None:
    norms = gradients(
        10.0, num_windows=25, num_micro_batches=2, rows=8, rng=np.random.default_rng(0)
    )
    late = with_preconditioned(norms, 1.1, after=5)
    scale = estimate_noise_scale(late, preconditioned=True)
    assert (scale.is_preconditioned, scale.num_windows) == (True, 20)
    assert "at steps 5 to 24" in scale.note
    plain = estimate_noise_scale(late, preconditioned=False)
    assert (plain.is_preconditioned, plain.num_windows) == (False, 25)
    assert scale.value is not None
    assert plain.value is not None
    assert scale.value > 1.1 * plain.value


def test_the_plain_gradient_steps_in_and_says_so() -> None:
    norms = gradients(
        31.0, num_windows=25, num_micro_batches=2, rows=8, rng=np.random.default_rng(0)
    )
    late = with_preconditioned(norms, 1.5, after=21)
    scale = estimate_noise_scale(late, preconditioned=True)
    assert (scale.is_preconditioned, scale.num_windows) == (False, 25)
    assert "second moments could not be read" in scale.note
    assert scale.value == estimate(norms).value


@pytest.mark.parametrize(
    ("phi", "num_micro_batches", "rows", "expected"),
    # ceil((phi / (0.6 · k · b))²), and not below the 7 that ±20 % takes without any noise.
    [(31.0, 2, 8, 11), (31.0, 2, 1, 668), (31.0, 8, 1, 42), (31.0, 8, 8, 7), (0.0, 2, 1, 7)],
)
def test_the_rule_of_thumb(phi: float, num_micro_batches: int, rows: int, expected: int) -> None:
    assert windows_for(phi, num_micro_batches, rows) == expected


def test_what_the_rule_of_thumb_calls_precise_is_within_a_fifth_of_the_truth() -> None:
    rng = np.random.default_rng(5)
    num_windows = windows_for(31.0, 8, 1)
    found = [
        estimate(gradients(31.0, num_windows=num_windows, num_micro_batches=8, rows=1, rng=rng))
        for _ in range(100)
    ]
    near = np.mean([abs((scale.value or 0) / 31.0 - 1) <= 0.25 for scale in found])
    assert near >= 0.8
    precise = [scale.is_precise for scale in found]
    assert 0.2 <= np.mean(precise) <= 0.8, "the estimate decides, and it lies on either side"
    short = estimate(gradients(31.0, num_windows=10, num_micro_batches=8, rows=1, rng=rng))
    assert "would tell it to about ±20 %" in short.note


@pytest.mark.parametrize(
    ("accumulation", "world_size", "expected"), [(1, 1, False), (2, 1, True), (1, 2, True)]
)
def test_a_pair_takes_two_micro_batches(accumulation: int, world_size: int, expected: bool) -> None:
    configuration = Configuration(
        micro_batch_size=8, accumulation_steps=accumulation, world_size=world_size
    )
    assert has_pair(configuration) is expected
