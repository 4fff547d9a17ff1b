"""What ranks can share is told from the numbers alone."""

from __future__ import annotations

import pytest

from autotune.errors import UsageError
from autotune.goal import Goal
from autotune.sharing import check_shared, shared_goal, starting_global_batch_size


@pytest.mark.parametrize(
    ("sizes", "num_ranks", "shared"),
    [((7, 9), 2, (8, 8)), ((1, 100), 3, (3, 99)), ((6, 6), 3, (6, 6)), ((5, 7), 1, (5, 7))],
)
def test_a_range_is_narrowed_to_what_ranks_share(
    sizes: tuple[int, int], num_ranks: int, shared: tuple[int, int]
) -> None:
    goal = shared_goal(Goal(global_batch_size_range=sizes, memory_limit_bytes=5), num_ranks)
    assert goal == Goal(global_batch_size_range=shared, memory_limit_bytes=5)


def test_a_range_without_such_a_size_is_refused() -> None:
    with pytest.raises(UsageError, match="from 7 to 8 can be shared by 3 ranks") as caught:
        shared_goal(Goal(global_batch_size_range=(7, 8)), 3)
    assert caught.value.remedy == "Let the range hold a multiple of 3, such as 9."


@pytest.mark.parametrize(
    ("goal", "micro_batch_size", "num_ranks", "size"),
    [
        (Goal(), None, 1, 32),
        (Goal(), 6, 1, 6),
        (Goal(global_batch_size=20), 4, 2, 20),
        # The nearest to 32, or to the micro-batch, that ranks share in whole micro-batches.
        (Goal(global_batch_size_range=(3, 99)), None, 3, 30),
        (Goal(global_batch_size_range=(8, 8)), None, 2, 8),
        (Goal(global_batch_size_range=(64, 256)), 5, 2, 70),
        (Goal(global_batch_size_range=(1, 2**20)), 5, 2, 10),
        # None in the range: it is left to be refused.
        (Goal(global_batch_size_range=(8, 9)), 5, 2, 8),
    ],
)
def test_a_run_starts_from_a_size_that_can_be_shared(
    goal: Goal, micro_batch_size: int | None, num_ranks: int, size: int
) -> None:
    assert starting_global_batch_size(goal, micro_batch_size, num_ranks) == size


@pytest.mark.parametrize(
    ("size", "micro_batch_size", "num_ranks", "cause", "remedy"),
    [
        (9, None, 2, "The global batch size 9 cannot be shared by 2 ranks.", "10, or another"),
        # A size that only the ranks could share would be refused next.
        (9, 5, 2, "The global batch size 9 cannot be shared by 2 ranks.", "10, or another"),
        (12, 5, 2, "12 is not a multiple of the micro-batch size 5 on 2 ranks.", "3, or "),
        (12, 5, 1, "12 is not a multiple of the micro-batch size 5.", "size 4, or "),
    ],
)
def test_a_size_that_cannot_be_shared_is_refused_with_the_nearest(
    size: int, micro_batch_size: int | None, num_ranks: int, cause: str, remedy: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_shared(size, micro_batch_size, num_ranks)
    assert caught.value.cause.endswith(cause)
    assert remedy in str(caught.value.remedy)
    check_shared(60, 5, 2)
