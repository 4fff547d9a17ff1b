"""Goals and budgets that make no sense are refused when they are made."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autotune.goal import Budget, Goal, limit_to_fill, usable_bytes


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"global_batch_size": 0}, ValueError),
        ({"global_batch_size": 2.5}, TypeError),
        ({"global_batch_size": True}, TypeError),
        ({"memory_limit_bytes": 0}, ValueError),
        ({"memory_limit_bytes": "4GiB"}, TypeError),
        ({"global_batch_size_range": (9, 8)}, ValueError),
        ({"global_batch_size_range": ("8", 9)}, TypeError),
        ({"global_batch_size_range": 8}, TypeError),
        ({"global_batch_size_range": (8,)}, TypeError),
    ],
)
def test_a_goal(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Goal(**fields)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"trials": 0}, ValueError),
        ({"trials": 2.0}, TypeError),
        ({"seconds": 0}, ValueError),
        ({"seconds": math.nan}, TypeError),
        ({"seconds": math.inf}, TypeError),
        ({"seconds": "5m"}, TypeError),
    ],
)
def test_a_budget(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Budget(**fields)


def test_the_margin_is_larger_on_a_device() -> None:
    assert usable_bytes(1000, on_device=False) == 950
    assert usable_bytes(2**30, on_device=True) == 2**30 - 256 * 2**20
    assert usable_bytes(2**20, on_device=True) == 0


@pytest.mark.parametrize("on_device", [True, False])
def test_a_limit_to_fill_is_just_enough(on_device: bool) -> None:
    for num_bytes in (2**20 + 1, 5 * 2**30, 2_345_678_901, 80 * 10**9):
        limit_bytes = limit_to_fill(num_bytes, on_device=on_device)
        assert usable_bytes(limit_bytes, on_device=on_device) >= num_bytes
        assert usable_bytes(limit_bytes - 2, on_device=on_device) <= num_bytes
