"""Who is best, who may be as good, and what else is offered."""

from __future__ import annotations

import numpy as np

from autotune.configuration import Configuration
from autotune.search.evidence.finished import MeasuredTrial
from autotune.search.evidence.ranking import Standing
from autotune.space import distance
from tests.testing.landscapes import MIB, make_space, measured

SPACE = make_space(24)
NONE, THIRD = SPACE.candidates[:8], SPACE.candidates[8:16]
"""Sizes 1, 2, 3, 4, 6, 8, 12, 24 without checkpointing, and with every third layer."""


def trial(
    number: int, configuration: Configuration, step_s: float, num_mib: int, *, noise: float = 1e-4
) -> MeasuredTrial:
    rng = np.random.default_rng(number)
    times_s = step_s * np.exp(noise * rng.standard_normal(8))
    return MeasuredTrial(
        number=number,
        purpose="search",
        configuration=configuration,
        measured=measured(times_s, 24, num_mib * MIB),
    )


def numbers(trials: tuple[MeasuredTrial, ...]) -> list[int]:
    return [t.number for t in trials]


def test_a_tie_goes_to_more_free_memory() -> None:
    large, small = trial(0, NONE[6], 1.000, 900), trial(1, NONE[3], 1.002, 300)
    standing = Standing([large, small, trial(2, NONE[0], 1.5, 100)])
    assert standing.fastest() is large
    assert standing.best() is small
    assert numbers(standing.rank()) == [1, 0, 2]


def test_a_tie_in_memory_goes_to_the_faster() -> None:
    first, second = trial(0, NONE[6], 1.000, 905), trial(1, NONE[5], 1.002, 900)
    assert Standing([first, second]).best() is first


def test_memory_that_does_not_matter_leaves_a_tie_to_the_faster() -> None:
    first, second = trial(0, NONE[6], 1.000, 990), trial(1, NONE[5], 1.002, 900)
    assert Standing([first, second], negligible_bytes=89 * MIB).best() is second
    assert Standing([first, second], negligible_bytes=90 * MIB).best() is first


def test_a_difference_beyond_the_noise_is_no_tie_whatever_the_memory() -> None:
    fast, frugal = trial(0, NONE[6], 1.00, 9000), trial(1, NONE[0], 1.02, 100)
    assert Standing([frugal, fast]).best() is fast


def test_no_trials_have_no_best() -> None:
    standing = Standing([])
    assert standing.fastest() is None
    assert standing.best() is None
    assert standing.rank() == ()
    assert standing.contenders() == ()
    assert standing.alternatives(trial(0, NONE[0], 1, 1), SPACE.baseline) == ()


def test_contenders_are_those_that_a_further_look_may_put_first() -> None:
    trials = [
        trial(0, NONE[6], 1.000, 900, noise=0.03),
        trial(1, NONE[5], 1.015, 800, noise=0.03),
        trial(2, NONE[4], 1.02, 700, noise=0.03),
        trial(3, NONE[0], 2.0, 100, noise=0.03),
    ]
    standing = Standing(trials)
    assert len(standing.contenders()) == 3
    assert 3 not in numbers(standing.contenders(num=4))
    assert standing.contenders()[0] is standing.best()
    assert len(standing.contenders(num=1)) == 1


def test_alternatives_say_what_they_give_and_what_they_cost() -> None:
    baseline = trial(0, SPACE.baseline, 1.04, 600)
    chosen = trial(1, NONE[6], 1.0, 900)
    frugal = trial(2, THIRD[5], 1.05, 300)
    slow = trial(3, THIRD[0], 1.2, 50)
    standing = Standing([baseline, chosen, frugal, slow])
    fastest, least, closest = standing.alternatives(chosen, SPACE.baseline)
    assert (fastest.kind, fastest.trial) == ("fastest", chosen)
    assert fastest.reason == "The recommendation has the highest rate measured."
    assert (least.kind, least.trial) == ("least memory", frugal)
    assert least.reason == (
        "It needs the least memory within 5% of the fastest: −4.8 % samples per second against "
        "the recommendation, and 300 MiB at the peak instead of 900 MiB."
    )
    assert (closest.kind, closest.trial) == ("closest to the baseline", baseline)
    assert closest.reason == (
        "The present configuration is itself within 5% of the fastest: −3.8 % samples per second "
        "against the recommendation, and 600 MiB at the peak instead of 900 MiB."
    )


def test_an_alternative_inside_the_noise_says_so() -> None:
    chosen, faster = trial(0, NONE[3], 1.003, 300), trial(1, NONE[6], 1.0, 900)
    fastest, *_ = Standing([chosen, faster]).alternatives(chosen, NONE[0])
    assert fastest.trial is faster
    assert "which is inside the noise" in fastest.reason


def test_distance_counts_knobs_before_doublings() -> None:
    baseline = SPACE.baseline
    by_distance = sorted(SPACE.candidates, key=lambda c: distance(c, baseline))
    assert by_distance[0] == baseline
    assert [c.micro_batch_size for c in by_distance[1:6]] == [8, 8, 8, 6, 12]
    assert [c.checkpointing.is_on for c in by_distance[1:6]] == [True, True, True, False, False]
    assert distance(NONE[7], baseline) < distance(THIRD[6], baseline)
