"""The decision over options whose order is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.configuration import Configuration
from autotune.cost.communication import Rate
from autotune.cost.decision import Option, compare, decide, least_share
from autotune.cost.learning import (
    NOT_NEEDED,
    SampleEfficiency,
    assumed_local_sgd,
    batch_efficiency,
)
from tests.autotune.cost.builders import noise

REFERENCE = 16


def option(
    samples_per_s: float,
    *,
    processes: int = 2,
    micro: int = 8,
    accumulation: int = 1,
    local_sgd_steps: int = 1,
    error: float = 0.02,
    efficiency: SampleEfficiency = NOT_NEEDED,
    is_baseline: bool = False,
    is_measured: bool = True,
) -> Option:
    return Option(
        configuration=Configuration(
            micro_batch_size=micro,
            accumulation_steps=accumulation,
            world_size=processes,
            local_sgd_steps=local_sgd_steps,
        ),
        rate=Rate(
            samples_per_s=samples_per_s,
            samples_per_s_interval=(samples_per_s / (1 + error), samples_per_s * (1 + error)),
            efficiency=efficiency,
        ),
        is_measured=is_measured,
        is_baseline=is_baseline,
    )


def local(samples_per_s: float, steps: int = 32) -> Option:
    model = assumed_local_sgd("adam", clips=True)
    return option(samples_per_s, local_sgd_steps=steps, efficiency=model.efficiency(steps))


def test_the_share_that_several_processes_must_keep() -> None:
    # Measured for two processes and a batch of 16: one alone kept 0.674 a step.
    assert least_share(15.0, 16, 2) == pytest.approx(0.674, abs=5e-4)
    assert least_share(0.0, 16, 2) == 1.0
    assert least_share(math.inf, 16, 2) == 0.5


@given(
    phi=st.floats(0.1, 1e4),
    batch=st.sampled_from([16, 64, 256]),
    num=st.sampled_from([2, 4, 8]),
    speed=st.floats(0.05, 1.0),
)
def test_it_is_the_same_as_comparing_products(
    phi: float, batch: int, num: int, speed: float
) -> None:
    alone = option(
        100.0,
        processes=1,
        micro=batch // num,
        efficiency=batch_efficiency(batch // num, batch, noise(phi, phi)),
    )
    together = option(100.0 * num * speed, processes=num, micro=batch // num)
    value, _ = compare(together, alone, batch)
    assert value == pytest.approx(speed / least_share(phi, batch, num))


def test_the_highest_product_wins_beyond_the_noise() -> None:
    slow, fast = option(40.0, is_baseline=True), option(100.0, micro=4, accumulation=2)
    found = decide([slow, fast], reference=REFERENCE)
    assert found.best is found.leader is fast
    assert [standing.option for standing in found.standings] == [fast, slow]
    assert [standing.is_tie for standing in found.standings] == [True, False]
    assert found.standings[1].ratio == pytest.approx(0.4)
    low, high = found.standings[1].ratio_interval
    assert math.log(high / 0.4) == pytest.approx(math.hypot(math.log(1.02), math.log(1.02)))
    assert low < 0.4 < high
    assert found.sentences == (
        "4×2×2 ranks: 100 samples/s (measured) × sample efficiency 1 = 100 useful samples/s.",
    )


def test_ties_go_to_ddp_then_to_fewer_processes_then_to_the_baseline() -> None:
    averaged = local(125.0, 4)
    ddp = option(101.0)
    alone = option(100.0, processes=1, accumulation=2)
    baseline = option(99.5, processes=1, micro=4, accumulation=4, is_baseline=True)
    assert decide([averaged, ddp], reference=REFERENCE).best is ddp
    assert decide([averaged, ddp, alone], reference=REFERENCE).best is alone
    found = decide([averaged, ddp, alone, baseline], reference=REFERENCE)
    assert found.best is baseline
    assert found.leader is averaged
    assert all(standing.is_tie for standing in found.standings)
    assert [standing.option for standing in found.standings] == [averaged, ddp, alone, baseline]


def test_among_equally_simple_ones_the_product_decides() -> None:
    first, second = option(100.0), option(101.0, micro=4, accumulation=2)
    assert decide([first, second], reference=REFERENCE).best is second


def test_what_is_not_known_of_local_sgd_is_the_same_for_two_step_counts() -> None:
    first, second = local(150.0, 32), local(100.0, 16)
    value, (low, high) = compare(first, second, REFERENCE)
    assert low > 1.35
    assert low < value < high < 1.6
    # Against DDP all of it counts.
    _, (low, high) = compare(first, option(100.0), REFERENCE)
    assert low < 0.97
    assert high > 1.35


def test_a_noise_scale_that_is_worse_for_a_larger_batch_is_better_for_a_smaller_one() -> None:
    scale = noise(10.0, 100.0)
    larger = option(100.0, micro=16, efficiency=batch_efficiency(32, 16, scale), error=0.0)
    smaller = option(100.0, micro=4, efficiency=batch_efficiency(8, 16, scale), error=0.0)
    _, (low, high) = compare(larger, smaller, REFERENCE)
    # At each noise scale the ratio of both is (phi + 8) / (phi + 32).
    assert (low, high) == pytest.approx((18 / 42, 108 / 132))


def test_several_processes_on_a_slow_link_are_not_surely_more_than_one() -> None:
    # The link of 100 Mbit/s with 10 ms round trips: 16.65 steps/s alone, 14.6 under local SGD.
    alone = option(
        16.65 * 8,
        processes=1,
        efficiency=batch_efficiency(8, 16, noise(12.0, 18.0, 15.0)),
    )
    found = decide([option(2.65 * 16), local(14.6 * 16), alone], reference=REFERENCE)
    assert found.best is alone
    assert found.leader.configuration.local_sgd_steps == 32
    assert found.sentences[1] == (
        "8×1×2 ranks, local SGD 32 comes to 1.07 times as much, which is inside what is not known "
        "(0.85 to 1.18); the tie goes to one process, which needs no averaging."
    )
    assert found.sentences[2] == (
        "2 processes come to no more than 1.07 times one alone on this link, which is not surely "
        "more."
    )


def test_one_process_alone_may_be_better_than_all() -> None:
    found = decide(
        [option(40.0, is_baseline=True), option(100.0, processes=1, accumulation=2)],
        reference=REFERENCE,
    )
    assert found.sentences[-1] == (
        "One process alone is better than all 2 of them on this link: 2.5 times as good as "
        "8×1×2 ranks."
    )


@pytest.mark.parametrize(
    ("samples_per_s", "words"), [(180.0, "come to 1.80 times"), (110.0, "come to only 1.10 times")]
)
def test_what_several_processes_are_worth_is_told(samples_per_s: float, words: str) -> None:
    found = decide(
        [option(samples_per_s), option(100.0, processes=1, accumulation=2)], reference=REFERENCE
    )
    assert found.sentences[-1] == f"2 processes {words} one alone (8×2)."


def test_speed_efficiency_and_product_stand_apart() -> None:
    scale = noise(15.0, 31.0)
    predicted = option(
        200.0, micro=32, efficiency=batch_efficiency(64, 16, scale), is_measured=False
    )
    found = decide([predicted], reference=REFERENCE)
    assert found.sentences == (
        "32×1×2 ranks: 200 samples/s (predicted) × sample efficiency 0.39 (0.39 to 0.49, measured) "
        "= 78.5 useful samples/s.",
    )


def test_nothing_is_no_choice() -> None:
    with pytest.raises(ValueError, match="nothing to decide"):
        decide([], reference=REFERENCE)


@given(
    rates=st.lists(st.floats(1.0, 1000.0), min_size=1, max_size=8),
    errors=st.lists(st.floats(0.0, 0.5), min_size=8, max_size=8),
    processes=st.lists(st.sampled_from([1, 2, 4]), min_size=8, max_size=8),
    steps=st.lists(st.sampled_from([1, 4, 32]), min_size=8, max_size=8),
)
def test_what_is_taken_is_never_shown_to_be_worse(
    rates: list[float], errors: list[float], processes: list[int], steps: list[int]
) -> None:
    model = assumed_local_sgd("adam", clips=True)
    options = [
        option(
            rate,
            error=error,
            processes=num,
            micro=place + 1,
            local_sgd_steps=count,
            efficiency=model.efficiency(count),
        )
        for place, (rate, error, num, count) in enumerate(
            zip(rates, errors, processes, steps, strict=False)
        )
    ]
    found = decide(options, reference=REFERENCE)
    assert {id(standing.option) for standing in found.standings} == {id(o) for o in options}
    assert compare(found.leader, found.best, REFERENCE)[1][0] <= 1
    for standing in found.standings:
        low, high = standing.ratio_interval
        assert low <= standing.ratio * (1 + 1e-12)
        assert standing.ratio <= high * (1 + 1e-12)
