"""Drift of ranks that step along known noise."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.cost.drift import describe_drift
from autotune.outcome import Distances


def test_ranks_that_walk_at_random_are_as_far_apart_as_theory_says() -> None:
    # SGD on a constant gradient of length 1: rate 0.1, 4 ranks, 8 local steps, b rows a step.
    rng = np.random.default_rng(0)
    eta, num_ranks, steps, trace_per_row, rows, num_dimensions = 0.1, 4, 8, 40.0, 5, 200
    apart, moved = [], []
    for _ in range(300):
        noise = rng.standard_normal((num_ranks, steps, num_dimensions))
        gradients = noise * np.sqrt(trace_per_row / rows / num_dimensions)
        gradients[:, :, 0] += 1.0
        ways = -eta * gradients.sum(axis=1)
        mean = ways.mean(axis=0)
        apart.append(float(((ways - mean) ** 2).sum(axis=1).mean()))
        moved.append(float((mean**2).sum()))
    found = describe_drift(
        Distances(apart_squared=tuple(apart), moved_squared=tuple(moved)),
        local_sgd_steps=steps,
        num_ranks=num_ranks,
    )
    expected = eta**2 * steps * (1 - 1 / num_ranks) * trace_per_row / rows
    assert found.apart**2 == pytest.approx(expected, rel=0.03)
    assert found.moved == pytest.approx(eta * steps, rel=0.03)


def test_it_is_said_as_what_it_is() -> None:
    found = describe_drift(
        Distances(apart_squared=(0.04, 0.04), moved_squared=(1.04, 1.04)),
        local_sgd_steps=16,
        num_ranks=2,
    )
    assert found.sentence == (
        "After 16 local steps the 2 ranks were 0.2 from their mean, 20% of the 1 that their mean "
        "went since the averaging before (2 averagings). This shows how far they drift, not what "
        "it costs, and falls with the learning rate."
    )


def test_a_way_below_its_noise_is_not_told() -> None:
    found = describe_drift(
        Distances(apart_squared=(1.0,), moved_squared=(0.9,)), local_sgd_steps=2, num_ranks=2
    )
    assert found.moved is None
    assert "not told from noise (1 averaging)" in found.sentence


@pytest.mark.parametrize(("squared", "num_ranks"), [((), 2), ((1.0,), 1)])
def test_nothing_makes_no_drift(squared: tuple[float, ...], num_ranks: int) -> None:
    nothing = Distances(apart_squared=squared, moved_squared=squared)
    with pytest.raises(ValueError, match="make no drift"):
        describe_drift(nothing, local_sgd_steps=4, num_ranks=num_ranks)
