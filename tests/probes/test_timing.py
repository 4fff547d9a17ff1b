from __future__ import annotations

from collections.abc import Iterator

import pytest

from probes.timing import Timing, half_iqr, time_call


class _Clock:
    """A clock that only calls move: the n-th call takes the n-th duration."""

    def __init__(self, durations_s: Iterator[float]) -> None:
        self.now_s = 0.0
        self.durations_s = durations_s
        self.num_calls = 0
        self.num_waits = 0

    def __call__(self) -> float:
        return self.now_s

    def call(self) -> None:
        self.num_calls += 1
        self.now_s += next(self.durations_s)

    def wait(self) -> None:
        self.num_waits += 1


def test_half_iqr() -> None:
    assert half_iqr((1.0, 2.0, 3.0, 4.0, 5.0)) == 1.0
    assert half_iqr((7.0,)) == 0.0


def test_median_and_spread_of_samples() -> None:
    clock = _Clock(iter([9.0, 0.02, 0.04, 0.03, 0.05, 0.01]))
    timing = time_call(clock.call, clock=clock, num_warmup=1, num_samples=5, time_limit_s=60)
    assert timing.samples_s == pytest.approx((0.02, 0.04, 0.03, 0.05, 0.01))
    assert timing.median_s == pytest.approx(0.03)
    assert timing.half_iqr_s == pytest.approx(0.01)
    assert timing.num_calls == 1


def test_short_calls_are_repeated_within_a_sample() -> None:
    clock = _Clock(iter(lambda: 0.001, None))
    timing = time_call(clock.call, clock=clock, synchronize=clock.wait, num_warmup=2, sample_s=0.01)
    assert timing.num_calls == 10
    assert timing.samples_s == pytest.approx((0.001,) * 7)
    assert clock.num_calls == 2 + 1 + 7 * 10
    assert clock.num_waits == 2 * (1 + 7)


def test_the_time_limit_leaves_three_samples() -> None:
    clock = _Clock(iter(lambda: 1.0, None))
    timing = time_call(clock.call, clock=clock, num_warmup=0, num_samples=100, time_limit_s=0.5)
    assert timing.samples_s == (1.0, 1.0, 1.0)


def test_one_sample_can_be_asked_for() -> None:
    clock = _Clock(iter(lambda: 1.0, None))
    assert time_call(clock.call, clock=clock, num_samples=1).samples_s == (1.0,)


def test_rate_is_amount_over_time() -> None:
    timing = Timing(samples_s=(0.5, 1.0, 2.0), num_calls=1)
    reading = timing.rate("memory bandwidth", "bytes_per_s", 100.0)
    assert reading.samples == (200.0, 100.0, 50.0)
    assert reading.value == 100.0
    assert reading.half_iqr == 37.5
    assert reading.unit == "bytes_per_s"


def test_outliers_are_noted_and_a_quiet_machine_is_not() -> None:
    noisy = Timing(samples_s=(1.0, 1.0, 1.6, 1.0, 1.1), num_calls=1)
    assert noisy.note is not None
    assert noisy.note.startswith("1 of 5 samples")
    assert Timing(samples_s=(1.0, 1.1, 1.2), num_calls=1).note is None
    both = noisy.rate("x", "flop_per_s", 1.0, "64 × 64 matrices").note
    assert both is not None
    assert both.startswith("64 × 64 matrices; 1 of 5")
