"""How ranks share a global batch, as far as a request alone tells: nothing has to be loaded."""

from __future__ import annotations

from dataclasses import replace

from autotune.configuration import divisors
from autotune.errors import UsageError
from autotune.goal import Goal

DEFAULT_GLOBAL_BATCH_SIZE = 32


def shared_goal(goal: Goal, num_ranks: int) -> Goal:
    """The goal with a range of global batch sizes narrowed to those that ranks share evenly.

    Args:
        goal: What is wanted.
        num_ranks: Ranks in all.

    Raises:
        UsageError: The range holds none of them.
    """
    if goal.global_batch_size_range is None:
        return goal
    low, high = goal.global_batch_size_range
    first, last = -(-low // num_ranks) * num_ranks, high // num_ranks * num_ranks
    if first > last:
        raise UsageError(
            f"No global batch size from {low} to {high} can be shared by {num_ranks} ranks.",
            f"Let the range hold a multiple of {num_ranks}, such as {first}.",
        )
    return replace(goal, global_batch_size_range=(first, last))


def starting_global_batch_size(goal: Goal, micro_batch_size: int | None, num_ranks: int) -> int:
    """The baseline's global batch size, where the job itself has none.

    Args:
        goal: Of a range, the size nearest to what would be taken without one.
        micro_batch_size: The user's present one; None where it is not known.
        num_ranks: Ranks in all.
    """
    wanted = goal.global_batch_size or micro_batch_size or DEFAULT_GLOBAL_BATCH_SIZE
    if goal.global_batch_size_range is None:
        return wanted
    low, high = goal.global_batch_size_range
    wanted = min(max(wanted, low), high)
    step = (micro_batch_size or 1) * num_ranks
    below = wanted // step * step
    return next((size for size in (below, below + step) if low <= size <= high and size), wanted)


def check_shared(global_batch_size: int, micro_batch_size: int | None, num_ranks: int) -> None:
    """Refuses a global batch that cannot be made of whole micro-batches on every rank.

    Args:
        global_batch_size: Samples per optimizer step.
        micro_batch_size: The user's; None where any will do.
        num_ranks: Ranks in all.

    Raises:
        UsageError: It cannot; the remedy names the nearest that can.
    """
    step = (micro_batch_size or 1) * num_ranks
    if global_batch_size % step == 0:
        return
    larger = -(-global_batch_size // step) * step
    if global_batch_size % num_ranks:
        raise UsageError(
            f"The global batch size {global_batch_size} cannot be shared by {num_ranks} ranks.",
            f"Use --global-batch-size {larger}, or another --processes.",
        )
    assert micro_batch_size is not None
    near = [d for d in divisors(global_batch_size // num_ranks) if d <= micro_batch_size]
    ranks = f" on {num_ranks} ranks" if num_ranks > 1 else ""
    raise UsageError(
        f"The global batch size {global_batch_size} is not a multiple of the micro-batch size "
        f"{micro_batch_size}{ranks}.",
        f"Use --micro-batch-size {near[-1]}, or --global-batch-size {larger}.",
    )
