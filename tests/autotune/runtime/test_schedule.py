from __future__ import annotations

import pytest

from autotune.runtime.schedule import AveragingSchedule


def averagings(
    schedule: AveragingSchedule, rates: list[float], *, first_step: int = 0
) -> list[int]:
    """The steps after which ranks average, where step n + 1 starts with the rate of n."""
    found, step, last_step = [], first_step, len(rates) - 1
    while step < last_step:
        begin = max(step, schedule.ddp_steps)
        step = schedule.next_after(
            step,
            learning_rate=rates[begin],
            is_rising=rates[begin + 1] > rates[begin],
            last_step=last_step,
        )
        found.append(step)
    return found


def test_the_place_in_the_training_alone_decides() -> None:
    schedule = AveragingSchedule(local_sgd_steps=4)
    assert averagings(schedule, [0.1] * 11) == [4, 8, 10]
    assert averagings(schedule, [0.1] * 11, first_step=6) == [8, 10], "as after a resume"


def test_local_steps_begin_after_those_of_ddp() -> None:
    schedule = AveragingSchedule(local_sgd_steps=3, ddp_steps=4)
    assert averagings(schedule, [0.1] * 13) == [7, 10, 12]
    assert averagings(schedule, [0.1] * 13, first_step=8) == [10, 12]


@pytest.mark.parametrize(
    ("rate", "steps"),
    # The published example: alpha 0.0175 and a peak of 0.008 give 4 steps.
    [(0.008, 4), (0.004, 19), (0.002, 76), (0.0175, 4), (0.0175 / 5, 25)],
)
def test_steps_grow_with_the_inverse_square_of_the_rate(rate: float, steps: int) -> None:
    schedule = AveragingSchedule(local_sgd_steps=4, qsr_alpha=0.0175)
    found = schedule.next_after(100, learning_rate=rate, is_rising=False, last_step=10_000)
    assert found == 100 + steps


def test_steps_stay_while_the_rate_rises_and_change_only_between_rounds() -> None:
    schedule = AveragingSchedule(local_sgd_steps=2, qsr_alpha=0.2)
    rates = [0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.08, 0.06, 0.04, 0.02, 0.01, 0.0]
    # Rising until 6; the round from 6 on has (0.2 / 0.1)² = 4 steps; the next would have 100.
    assert averagings(schedule, rates) == [2, 4, 6, 10, 12]


def test_no_round_goes_beyond_the_last_step() -> None:
    schedule = AveragingSchedule(local_sgd_steps=2, qsr_alpha=0.2)
    assert schedule.next_after(5, learning_rate=0.0, is_rising=False, last_step=9) == 9
    assert schedule.next_after(5, learning_rate=1e-300, is_rising=False, last_step=9) == 9
