"""The step-time model against measured steps, and the choice over it."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cost.communication import (
    LocalSGDChoice,
    Rate,
    break_even_steps,
    choose_local_sgd_steps,
    legal_step_counts,
    most_useful_steps,
    ratio,
    step_s,
    times,
)
from autotune.cost.learning import NOT_NEEDED, LocalSGDModel, SampleEfficiency, assumed_local_sgd
from autotune.outcome import Exchange
from tests.autotune.cost.builders import exchange

# Two ranks, a GPT-2 of 0.83 million parameters, 16 × 64 tokens a step, over a link of 100 Mbit/s
# with round trips of 10 ms; one process makes 16.65 steps/s on half the batch.
SLOW = exchange(0.0593, 0.298, 1 / 2.65)
ONE_AT_A_TIME = exchange(0.0593, 1.5126, 1 / 2.65)
NUM_STEPS = 48
"""Steps of each measured run, which ends with one more averaging."""
MEASURED_STEPS_PER_S = {
    "fused": {1: 2.63, 4: 7.25, 16: 12.7},
    "one at a time": {1: 0.62, 2: 1.16, 4: 2.18, 8: 3.65, 16: 5.28},
}
SEEN_MODEL = LocalSGDModel(
    first=0.88,
    first_interval=(0.83, 0.93),
    kappa=0.0033,
    kappa_interval=(0.0032, 0.0034),
)


def choose(
    found: Exchange,
    model: LocalSGDModel = SEEN_MODEL,
    *,
    one_process: Rate | None = None,
    step_counts: tuple[int, ...] | None = None,
) -> LocalSGDChoice:
    return choose_local_sgd_steps(
        found,
        model,
        samples_per_step=16,
        step_counts=legal_step_counts(found) if step_counts is None else step_counts,
        one_process=one_process,
    )


def test_steps_are_predicted_from_computation_and_averaging() -> None:
    errors = []
    for name, measured in MEASURED_STEPS_PER_S.items():
        found = SLOW if name == "fused" else ONE_AT_A_TIME
        for steps, steps_per_s in measured.items():
            predicted_s = step_s(found, steps) + found.averaging_s / NUM_STEPS
            errors.append(abs(predicted_s * steps_per_s - 1))
    assert statistics.median(errors) <= 0.05
    assert max(errors) <= 0.08


def test_break_even_with_ddp() -> None:
    assert break_even_steps(SLOW) == pytest.approx(0.94, abs=0.01)
    assert break_even_steps(ONE_AT_A_TIME) == pytest.approx(4.76, abs=0.01)
    assert break_even_steps(exchange(0.06, 0.1, 0.06)) is None


def test_the_most_useful_step_count_by_hand() -> None:
    assert ratio(SLOW) == pytest.approx(5.03, abs=0.01)
    assert most_useful_steps(5.0) == 45
    assert most_useful_steps(0.001) == 1


@given(r=st.floats(0.01, 1000))
def test_the_most_useful_step_count_is_within_a_tenth_of_the_ideal_speed(r: float) -> None:
    most = most_useful_steps(r)
    assert 1 / (1 + r / most) >= 0.9 - 1e-6
    assert most == 1 or 1 / (1 + r / (most - 1)) < 0.9 + 1e-6


def test_legal_counts_are_powers_of_two_up_to_the_first_that_is_enough() -> None:
    assert legal_step_counts(SLOW) == (2, 4, 8, 16, 32, 64)
    assert legal_step_counts(SLOW, total_steps=20) == (2, 4, 8, 16)
    assert legal_step_counts(SLOW, total_steps=1) == ()
    assert legal_step_counts(exchange(1.0, 0.01, 1.5)) == (2,)


def test_the_slow_link_as_it_was_measured() -> None:
    alone = Rate(
        samples_per_s=16.65 * 8,
        samples_per_s_interval=(16.5 * 8, 16.8 * 8),
        efficiency=SampleEfficiency(value=2 * 0.674, interval=(1.3, 1.4), basis="measured"),
    )
    found = choose(SLOW, one_process=alone)
    assert found.local_sgd_steps == 32
    useful = {
        row.local_sgd_steps: row.rate.useful_samples_per_s / 16
        for row in found.rows
        if row.local_sgd_steps in (1, 4, 16, 64)
    }
    # DDP-equivalent steps per second, from measured speeds and measured sample efficiencies.
    assert useful == pytest.approx({1: 2.65, 4: 6.6, 16: 10.9, 64: 11.6}, rel=0.05)
    assert [row.is_measured for row in found.rows] == [True, *[False] * 6]
    assert found.rows[0].step_s == SLOW.ddp_step_s
    assert found.rows[0].rate.efficiency == NOT_NEEDED
    assert found.gain == pytest.approx(4.4, abs=0.05)
    assert found.gain_interval[0] < found.gain < found.gain_interval[1]
    assert found.sentence == (
        "Speed times sample efficiency, local SGD every 32 steps is predicted to be 4.4 times DDP "
        "on this link, but only 1.04 times one process."
    )


def test_a_much_better_job_is_told_without_a_but() -> None:
    alone = Rate(samples_per_s=50.0, samples_per_s_interval=(50.0, 50.0), efficiency=NOT_NEEDED)
    assert choose(SLOW, one_process=alone).sentence.endswith(", and 3.7 times one process.")
    alone = Rate(samples_per_s=400.0, samples_per_s_interval=(400.0, 400.0), efficiency=NOT_NEEDED)
    assert choose(SLOW, one_process=alone).sentence.endswith(", but 0.47 times one process.")
    assert choose(SLOW).sentence.endswith(" times DDP on this link.")


def test_ddp_stays_where_it_hides_its_exchange() -> None:
    alone = Rate(samples_per_s=100.0, samples_per_s_interval=(99.0, 101.0), efficiency=NOT_NEEDED)
    found = choose(exchange(0.1, 0.05, 0.106), one_process=alone)
    assert found.local_sgd_steps == 1
    assert found.sentence == (
        "DDP stays: its exchange adds 6% to a step, which leaves nothing to save. It is 1.51 times "
        "one process."
    )


def test_ddp_stays_where_local_sgd_is_not_surely_better() -> None:
    # Local SGD is up to 1.4 times as fast, and may cost a quarter and more of each sample.
    found = choose(exchange(0.1, 0.05, 0.14), assumed_local_sgd("adam", clips=True))
    assert found.gain > 1.1
    assert found.gain_interval[0] < 1 < found.gain_interval[1]
    assert found.local_sgd_steps == 1
    assert found.sentence.startswith("DDP stays: local SGD every 8 steps is expected to be 1.1")
    assert "not surely better (0.8" in found.sentence
    exact = choose(exchange(0.1, 0.05, 0.14), assumed_local_sgd("sgd", clips=False))
    assert exact.local_sgd_steps == 8


def test_without_step_counts_there_is_ddp_alone() -> None:
    found = choose(SLOW, step_counts=(1,))
    assert (found.local_sgd_steps, found.gain, len(found.rows)) == (1, 1.0, 1)
    assert found.sentence == "DDP stays: no number of local SGD steps was considered."


@given(
    compute_s=st.floats(0.01, 10),
    averaging_s=st.floats(0.001, 100),
    exposed_s=st.floats(0, 100),
    steps=st.lists(st.integers(2, 512), min_size=1, max_size=6),
)
def test_the_choice_is_the_best_row_or_ddp(
    compute_s: float, averaging_s: float, exposed_s: float, steps: list[int]
) -> None:
    found = choose(
        exchange(compute_s, averaging_s, compute_s + exposed_s), step_counts=tuple(steps)
    )
    ddp, *others = found.rows
    best = max(others, key=lambda row: row.rate.useful_samples_per_s)
    assert found.local_sgd_steps in (1, best.local_sgd_steps)
    if found.local_sgd_steps > 1:
        assert best.rate.useful_interval[0] > ddp.rate.useful_samples_per_s
    assert [row.local_sgd_steps for row in found.rows] == [1, *sorted({*steps})]
    assert math.isfinite(found.gain)


@pytest.mark.parametrize(
    ("factor", "text"), [(1.05, "1.05"), (0.936, "0.94"), (4.53, "4.5"), (31.4, "31")]
)
def test_ratios_for_reading(factor: float, text: str) -> None:
    assert times(factor) == text
