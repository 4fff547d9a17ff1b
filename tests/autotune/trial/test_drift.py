"""Distances between ranks, against tensors whose distances are known."""

from __future__ import annotations

import pytest
import torch

from autotune.outcome import Distances
from autotune.trial.drift import DriftWatch


def test_ranks_are_so_far_from_their_mean_and_the_mean_from_where_it_was() -> None:
    held = [torch.zeros(2, 3), torch.zeros(4)]
    watch = DriftWatch(lambda: held)
    watch.before()
    watch.after()
    assert watch.distances is None, "the first averaging has nothing before it"
    for number in (1.0, 2.0):
        # This rank goes to 3 everywhere in the first tensor, and the mean of all is 1 further on.
        held[0].add_(3.0)
        watch.before()
        held[0].add_(-2.0)
        held[1].fill_(number)
        watch.after()
    # In the first tensor 6 × 2², in the second 4 × 1²; the mean went 1 in all ten.
    assert watch.distances == Distances(apart_squared=(28.0, 28.0), moved_squared=(10.0, 10.0))


def test_a_sample_of_a_large_model_stands_for_all_of_it() -> None:
    torch.manual_seed(0)
    held = [torch.zeros(n) for n in (7, 1000, 1, 3, 5000, 2)]
    watch = DriftWatch(lambda: held, most_elements=500)
    watch.before()
    watch.after()
    steps = [torch.randn_like(tensor) for tensor in held]
    for tensor, step in zip(held, steps, strict=True):
        tensor.add_(step)
    watch.before()
    for tensor, step in zip(held, steps, strict=True):
        tensor.sub_(step / 2)
    watch.after()
    assert watch.distances is not None
    expected = sum(float((step / 2).square().sum()) for step in steps)
    assert watch.distances.apart_squared[0] == pytest.approx(expected, rel=0.2)
    assert watch.distances.moved_squared[0] == pytest.approx(expected, rel=0.2)


def test_what_is_no_number_is_left_out() -> None:
    held = [torch.zeros(3)]
    watch = DriftWatch(lambda: held)
    watch.before()
    watch.after()
    watch.before()
    held[0].fill_(float("nan"))
    watch.after()
    assert watch.distances is None
