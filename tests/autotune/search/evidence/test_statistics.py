"""Intervals and ratios against figures worked out by other means, and under simulated noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.outcome import Speed
from autotune.search.evidence.statistics import (
    Levels,
    Ratio,
    ratio_of_times,
    samples_per_s_interval,
    settled,
)

TIMES = st.lists(st.floats(0.01, 10.0), min_size=1, max_size=12)


def speed(times_s: list[float], samples: int = 8) -> Speed:
    return Speed(
        step_times_s=tuple(times_s),
        step_samples=(samples,) * len(times_s),
        step_tokens=(0,) * len(times_s),
    )


def ratio(value: float, half_width: float) -> Ratio:
    return Ratio(
        value=value, low=value / (1 + half_width), high=value * (1 + half_width), num_pairs=9
    )


def test_the_interval_of_a_rate_by_hand() -> None:
    # 8 samples in 1, 2 and 3 seconds: a rate of 4; residuals 4, 0 and -4, so that the standard
    # error of the ratio is sqrt((16 + 0 + 16) / 2 / 3) / 8.
    low, high = samples_per_s_interval(speed([1.0, 2.0, 3.0]))
    factor = math.exp(4.303 * math.sqrt(32 / 6) / 8)
    assert (low, high) == pytest.approx((4 / factor, 4 * factor))


def test_equal_steps_have_an_interval_without_width() -> None:
    assert samples_per_s_interval(speed([2.0, 2.0, 2.0])) == pytest.approx((4.0, 4.0))


def test_steps_of_different_size_at_one_rate_have_no_width_either() -> None:
    uneven = Speed(step_times_s=(1.0, 3.0), step_samples=(8, 24), step_tokens=(0, 0))
    assert samples_per_s_interval(uneven) == pytest.approx((8.0, 8.0))


def test_a_single_step_is_known_to_a_factor_of_two() -> None:
    assert samples_per_s_interval(speed([2.0])) == (2.0, 8.0)


@given(TIMES)
def test_an_interval_holds_its_rate_and_is_positive_and_finite(times_s: list[float]) -> None:
    measured = speed(times_s)
    low, high = samples_per_s_interval(measured)
    assert 0 < low <= measured.samples_per_s * (1 + 1e-9)
    assert measured.samples_per_s <= high * (1 + 1e-9)
    assert math.isfinite(high)


def test_the_rate_lies_in_its_interval_about_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(1000):
        low, high = samples_per_s_interval(speed(list(1 + 0.1 * rng.standard_normal(8))))
        hits += low <= 8.0 <= high
    assert 930 <= hits <= 970


def test_pairs_cancel_what_their_batch_costs() -> None:
    batches = np.array([1.0, 5.0, 2.0, 9.0, 3.0, 4.0])
    found = ratio_of_times(list(batches), list(batches * 1.25))
    assert found.value == pytest.approx(1.25)
    assert found.half_width == pytest.approx(0.0, abs=1e-9)
    assert found.num_pairs == 6
    assert found.inverse.value == pytest.approx(0.8)


def test_one_held_up_pair_in_five_changes_nothing() -> None:
    second = [1.2, 1.21, 1.19, 1.2, 1.2]
    quiet = ratio_of_times([1.0] * 5, second)
    held_up = ratio_of_times([1.0, 1.0, 1.0, 1.0, 40.0], second)
    assert quiet.value == pytest.approx(1.2, rel=0.01)
    assert held_up.value == pytest.approx(quiet.value, rel=0.01)
    assert held_up.low < 1.2 < held_up.high


def test_the_true_ratio_lies_in_its_interval_about_as_often_as_promised() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(1000):
        logs = 0.05 * rng.standard_normal((2, 12))
        found = ratio_of_times(list(np.exp(logs[0])), list(1.3 * np.exp(logs[1])))
        hits += found.low <= 1.3 <= found.high
    assert 925 <= hits <= 975


@given(st.data(), st.integers(1, 12))
def test_a_ratio_turned_round_is_its_inverse(data: st.DataObject, num: int) -> None:
    side = st.lists(st.floats(0.01, 10.0), min_size=num, max_size=num)
    first, second = data.draw(side), data.draw(side)
    there, back = ratio_of_times(first, second), ratio_of_times(second, first)
    assert back.value == pytest.approx(1 / there.value)
    assert back.interval == pytest.approx(there.inverse.interval)
    assert 0 < there.low <= there.value * (1 + 1e-12)
    assert there.value <= there.high * (1 + 1e-12)


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="2 times cannot be paired with 1"):
        ratio_of_times([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("value", "half_width", "verdict"),
    [
        (1.004, 0.0001, "tie"),  # narrow, but two trials of one configuration differ as much
        (1.010, 0.0001, "faster"),
        (1.010, 0.02, "tie"),  # inside the noise
        (1.030, 0.2, "faster"),  # unsettled, but too much to give away as a tie
        (0.970, 0.2, "slower"),
        (0.990, 0.005, "slower"),
        (1.0, 0.0, "tie"),
    ],
)
def test_what_is_a_tie(value: float, half_width: float, verdict: str) -> None:
    found = ratio(value, half_width)
    verdicts = {"tie": found.is_tie, "faster": found.is_faster, "slower": found.is_slower}
    assert [name for name, holds in verdicts.items() if holds] == [verdict]


def test_settled_looks_at_the_width_alone() -> None:
    assert settled((0.98, 1.02), 0.03)
    assert settled((1.96, 2.04), 0.03)
    assert not settled((0.95, 1.05), 0.03)
    assert not settled((0.0, 1.0), 0.03)
    assert settled(ratio(1.7, 0.03).interval, 0.0301)


def test_levels_of_trials_with_different_numbers_of_steps() -> None:
    batches = [1.0, 3.0, 2.0, 5.0]
    levels = Levels(
        [
            speed([2.0 * b for b in batches]),
            speed([1.0 * b for b in batches[:3]]),
            speed([4.0 * b for b in batches]),
        ]
    )
    assert levels.ratio(1, 0).value == pytest.approx(2.0)
    assert levels.ratio(0, 2).value == pytest.approx(2.0)
    assert levels.ratio(1, 2).value == pytest.approx(4.0)
    assert levels.ratio(1, 2).num_pairs == 3
    assert levels.ratio(1, 1).interval == (1.0, 1.0)


def test_levels_see_past_steps_that_were_held_up() -> None:
    rng = np.random.default_rng(2)
    batches = np.exp(0.3 * rng.standard_normal(5))
    speeds = []
    for cost in (1.0, 1.1, 1.2, 1.3):
        times_s = cost * batches * np.exp(0.01 * rng.standard_normal(5))
        times_s[rng.integers(5)] *= 3
        speeds.append(speed(list(times_s)))
    levels = Levels(speeds)
    for place, cost in enumerate((1.0, 1.1, 1.2, 1.3)):
        found = levels.ratio(0, place)
        assert found.value == pytest.approx(cost, rel=0.02)
        assert found.low <= cost <= found.high
    plain = speeds[0].samples_per_s / speeds[3].samples_per_s
    assert abs(plain - 1.3) > abs(levels.ratio(0, 3).value - 1.3), "the sums are further off"


def test_levels_hold_their_ratio_about_as_often_as_promised() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(500):
        logs = 0.05 * rng.standard_normal((4, 8)) + rng.standard_normal(8)
        found = Levels([speed(list(np.exp(row))) for row in logs]).ratio(0, 1)
        hits += found.low <= 1.0 <= found.high
    assert 460 <= hits <= 490


@given(st.lists(TIMES, min_size=1, max_size=6))
def test_levels_are_finite_and_turn_round(times_s: list[list[float]]) -> None:
    levels = Levels([speed(times) for times in times_s])
    for first in range(len(times_s)):
        for second in range(len(times_s)):
            found = levels.ratio(first, second)
            assert 0 < found.low <= found.value * (1 + 1e-9)
            assert found.value <= found.high * (1 + 1e-9) < math.inf
            assert levels.ratio(second, first).value == pytest.approx(1 / found.value)


def test_a_lone_trial_is_as_fast_as_itself() -> None:
    assert Levels([speed([1.0, 5.0])]).ratio(0, 0).interval == (1.0, 1.0)
    assert Levels([]) is not None
