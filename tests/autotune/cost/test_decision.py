"""What learning adds to a comparison of speeds, and the words for the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.configuration import Configuration
from autotune.cost.communication import Rate
from autotune.cost.decision import Rival, Way, explain, learning_ratio, simplicity
from autotune.cost.learning import (
    NOT_NEEDED,
    SampleEfficiency,
    assumed_local_sgd,
    batch_efficiency,
)
from tests.autotune.cost.builders import noise

REFERENCE = 16
ASSUMED = assumed_local_sgd("adam", clips=True)


def way(
    samples_per_s: float,
    *,
    processes: int = 2,
    micro: int = 8,
    accumulation: int = 1,
    local_sgd_steps: int = 1,
    efficiency: SampleEfficiency = NOT_NEEDED,
) -> Way:
    return Way(
        configuration=Configuration(
            micro_batch_size=micro,
            accumulation_steps=accumulation,
            world_size=processes,
            local_sgd_steps=local_sgd_steps,
        ),
        rate=Rate(
            samples_per_s=samples_per_s,
            samples_per_s_interval=(samples_per_s / 1.02, samples_per_s * 1.02),
            efficiency=efficiency,
        ),
    )


def local(samples_per_s: float, steps: int = 32) -> Way:
    return way(samples_per_s, local_sgd_steps=steps, efficiency=ASSUMED.efficiency(steps))


ALONE = way(100.0, processes=1, accumulation=2)


def test_what_is_not_known_of_local_sgd_is_the_same_for_two_step_counts() -> None:
    sizes = (REFERENCE, REFERENCE)
    more, fewer = ASSUMED.efficiency(32), ASSUMED.efficiency(16)
    value, (low, high) = learning_ratio(more, fewer, sizes=sizes, reference=REFERENCE)
    assert 0.9 < low < value < high < 1
    # Against data parallel training all of it counts.
    _, found = learning_ratio(more, NOT_NEEDED, sizes=sizes, reference=REFERENCE)
    assert found == more.interval


def test_a_noise_scale_that_is_worse_for_a_larger_batch_is_better_for_a_smaller_one() -> None:
    scale = noise(10.0, 100.0)
    larger, smaller = batch_efficiency(32, 16, scale), batch_efficiency(8, 16, scale)
    _, ends = learning_ratio(larger, smaller, sizes=(32, 8), reference=REFERENCE)
    # At each noise scale the ratio of both is (phi + 8) / (phi + 32).
    assert ends == pytest.approx((18 / 42, 108 / 132))


@given(
    phi=st.floats(0.1, 1e4),
    more=st.floats(1.0, 100.0),
    sizes=st.tuples(st.sampled_from([4, 16, 64]), st.sampled_from([4, 16, 64])),
    steps=st.tuples(st.sampled_from([1, 4, 32]), st.sampled_from([1, 4, 32])),
)
def test_the_interval_holds_the_ratio_and_turns_over(
    phi: float, more: float, sizes: tuple[int, int], steps: tuple[int, int]
) -> None:
    scale = noise(phi, phi * more)
    one, other = (
        ASSUMED.efficiency(n).times(batch_efficiency(size, REFERENCE, scale))
        for n, size in zip(steps, sizes, strict=True)
    )
    value, (low, high) = learning_ratio(one, other, sizes=sizes, reference=REFERENCE)
    assert low <= value <= high
    back, ends = learning_ratio(other, one, sizes=sizes[::-1], reference=REFERENCE)
    assert back == pytest.approx(1 / value)
    assert ends == pytest.approx((1 / high, 1 / low))


def test_data_parallel_is_simpler_than_local_sgd_and_fewer_processes_than_more() -> None:
    ways = [local(1.0).configuration, way(1.0).configuration, ALONE.configuration]
    assert sorted(ways, key=simplicity) == ways[::-1]


def test_speed_efficiency_and_product_stand_apart() -> None:
    larger = way(200.0, micro=32, efficiency=batch_efficiency(64, 16, noise(15.0, 31.0)))
    assert explain(larger, [larger]) == (
        "32×1×2 ranks: 200 samples/s × sample efficiency 0.39 (0.39 to 0.49, measured) = 78.5 "
        "useful samples/s (76.9 to 101).",
    )
    plain = way(100.0)
    assert explain(plain, [plain]) == (
        "8×1×2 ranks: 100 samples/s × sample efficiency 1 = 100 useful samples/s.",
    )


def test_a_tie_says_what_it_passes_over() -> None:
    rival = Rival(way=local(14.6 * 16), ratio=1.07, ratio_interval=(0.85, 1.18))
    ways = [ALONE, rival.way, way(2.65 * 16)]
    assert explain(ALONE, ways, rival)[1] == (
        "8×1×2 ranks, local SGD 32 comes to 1.07 times as much, which is inside what is not known "
        "(0.85 to 1.18); the tie goes to one process, which needs no averaging."
    )
    plain = way(40.0)
    assert "the tie goes to plain data parallel training." in explain(plain, [plain], rival)[1]
    together = Rival(way=plain, ratio=1.01, ratio_interval=(0.99, 1.03))
    assert "the tie goes to fewer processes." in explain(ALONE, [ALONE], together)[1]
    assert "leaves more memory free." in explain(way(40.0, micro=4), [plain], together)[1]


def test_several_processes_on_a_slow_link_are_not_surely_more_than_one() -> None:
    assert explain(ALONE, [ALONE, way(107.0)])[-1] == (
        "2 processes come to no more than 1.07 times one alone on this link, which is not surely "
        "more."
    )


def test_one_process_alone_may_be_better_than_all() -> None:
    assert explain(ALONE, [way(40.0), ALONE])[-1] == (
        "One process alone is better than all 2 of them on this link: 2.5 times as good as "
        "8×1×2 ranks."
    )


@pytest.mark.parametrize(
    ("samples_per_s", "words"), [(180.0, "come to 1.80 times"), (110.0, "come to only 1.10 times")]
)
def test_what_several_processes_are_worth_is_told(samples_per_s: float, words: str) -> None:
    chosen = way(samples_per_s)
    assert explain(chosen, [chosen, ALONE])[-1] == f"2 processes {words} one alone (8×2)."
