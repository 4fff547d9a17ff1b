"""What is asked of an estimate beside the traced step, and the rows of its table."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.configuration import divisors
from autotune.cost.memory.allocator_settings import UNCHANGED, AllocatorSettings
from autotune.cost.memory.outside import ALONE, Ranks, Target
from autotune.goal import usable_bytes

LARGEST_SIZE = 2**20
"""Micro-batch sizes beyond this are not looked at."""
MOST_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is estimated, beside the traced step."""

    target: Target
    ranks: Ranks = ALONE
    settings: AllocatorSettings = UNCHANGED
    global_batch_size: int | None = None
    """Samples of an optimizer step over all ranks; None leaves accumulation open, and the worst
    case of it is taken."""
    micro_batch_sizes: tuple[int, ...] = ()
    """Sizes that the table must have."""
    process_bytes: int | None = None
    """Resident memory of a training process after its imports, where it was measured."""

    @property
    def usable_bytes(self) -> int:
        """What may be filled, the margin taken off."""
        return usable_bytes(self.target.total_bytes, on_device=not self.target.is_cpu)

    @property
    def per_rank(self) -> int | None:
        """Samples of an optimizer step on each rank."""
        return self.global_batch_size and self.global_batch_size // self.ranks.world_size

    def accumulation_steps(self, micro_batch_size: int) -> int:
        """Micro-batches of an optimizer step; 2 stands for any number where it is open."""
        return 2 if self.per_rank is None else max(1, self.per_rank // micro_batch_size)


def table_sizes(question: Question, largest: int) -> tuple[int, ...]:
    """The rows of the table: up to the first size that fits under no form.

    Args:
        question: What is estimated.
        largest: The largest size that fits under any form.
    """
    if question.per_rank is not None:
        legal = [size for size in divisors(question.per_rank) if size <= LARGEST_SIZE]
    else:
        legal = [2**power for power in range(LARGEST_SIZE.bit_length())]
    beyond = next((number for number, size in enumerate(legal) if size > largest), len(legal))
    rows = legal[: beyond + 1]
    if len(rows) > MOST_ROWS:
        # The small ones are the least interesting, except for the first.
        rows = [rows[0], *rows[-MOST_ROWS + 1 :]]
    return tuple(sorted({*rows, *question.micro_batch_sizes}))
