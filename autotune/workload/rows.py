"""Chooses training samples: the longest for memory, the first in sampler order for speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from statistics import median_low
from typing import TYPE_CHECKING, Protocol

from autotune.workload.data import peek
from autotune.workload.loaded import Row, repeat_to

if TYPE_CHECKING:
    import datasets


class Rows(Protocol):
    """What is asked of the tokenised rows, with and without a length."""

    @property
    def num_rows(self) -> int | None:
        """Rows of one epoch; None for a stream."""

    @property
    def tokens_median(self) -> int:
        """The middle length, in tokens."""

    @property
    def tokens_max(self) -> int:
        """The greatest length that was seen, in tokens."""

    def longest(self, num: int) -> list[Row]:
        """The `num` rows that `longest_first` puts first."""

    def typical(self, num: int) -> list[Row]:
        """The first `num` rows in the order in which they are trained on."""


@dataclass
class MapRows:
    """Rows of a dataset with a length."""

    dataset: datasets.Dataset
    by_field: Sequence[tuple[int, ...]]
    """Tokens of every row, field by field."""
    seed: int

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of every row."""
        return [sum(row) for row in self.by_field]

    @property
    def num_rows(self) -> int:
        """Rows of one epoch."""
        return len(self.dataset)

    @property
    def tokens_median(self) -> int:
        """The middle length."""
        return median_low(self.lengths)

    @property
    def tokens_max(self) -> int:
        """The greatest length."""
        return max(self.lengths)

    def longest(self, num: int) -> list[Row]:
        """The longest rows of the whole dataset."""
        return repeat_to([self.dataset[i] for i in longest_first(self.by_field, num)], num)

    def typical(self, num: int) -> list[Row]:
        """The first rows as Trainer's own loader yields them, epoch after epoch.

        Trainer has Accelerate replace its random sampler by a seedable one, which seeds a
        generator of its own with the seed plus the epoch before it permutes the rows.
        """
        import torch
        from torch.utils.data import RandomSampler

        indices: list[int] = []
        for epoch in count():
            if len(indices) >= num:
                break
            generator = torch.Generator().manual_seed(self.seed + epoch)
            indices += RandomSampler(range(len(self.dataset)), generator=generator)
        return [self.dataset[i] for i in indices[:num]]


@dataclass
class StreamRows:
    """Rows of a dataset without a length, of which only the first ones are ever looked at."""

    dataset: datasets.IterableDataset
    length_fields: tuple[str, ...]

    @property
    def num_rows(self) -> None:
        """Nobody knows."""
        return

    @cached_property
    def _peeked(self) -> list[Row]:
        return [*peek(self.dataset)]

    @cached_property
    def _by_field(self) -> list[tuple[int, ...]]:
        return [field_tokens(row, self.length_fields) for row in self._peeked]

    @cached_property
    def _lengths(self) -> list[int]:
        return [sum(row) for row in self._by_field]

    @property
    def tokens_median(self) -> int:
        """The middle length of the first rows."""
        return median_low(self._lengths)

    @property
    def tokens_max(self) -> int:
        """The greatest length of the first rows."""
        return max(self._lengths, default=0)

    def longest(self, num: int) -> list[Row]:
        """The longest of the first rows."""
        return repeat_to([self._peeked[i] for i in longest_first(self._by_field, num)], num)

    def typical(self, num: int) -> list[Row]:
        """The first rows in the order of the stream, which Trainer does not shuffle."""
        rows = self._peeked if num <= len(self._peeked) else list(islice(self.dataset, num))
        return repeat_to(rows, num) if num > len(rows) else rows[:num]


def longest_first(by_field: Sequence[tuple[int, ...]], num: int) -> list[int]:
    """Places of at most `num` rows that make the largest batch together, among equals the earlier.

    A batch is as wide as the longest of each field, whichever rows these are: they come first,
    where there is room for all of them. Then the rows come that are the longest over all fields.

    Args:
        by_field: Tokens of every row, field by field.
        num: Places that are asked for.
    """
    places = range(len(by_field))
    order = sorted(places, key=lambda i: (-sum(by_field[i]), i))
    num_fields = len(by_field[0]) if by_field else 0
    widest = {max(order, key=lambda i: by_field[i][field]): None for field in range(num_fields)}
    if 1 < len(widest) <= num:
        order = [*widest, *(i for i in order if i not in widest)]
    return order[:num]


def field_tokens(row: Row, fields: tuple[str, ...]) -> tuple[int, ...]:
    """Tokens of one row in each of the fields that count."""
    values = (row.get(name) for name in fields)
    return tuple(len(value) if isinstance(value, Sequence) else 0 for value in values)


def row_tokens(row: Row, fields: tuple[str, ...]) -> int:
    """Tokens of one row over all fields that count."""
    return sum(field_tokens(row, fields))


def field_lengths(dataset: datasets.Dataset, fields: tuple[str, ...]) -> list[tuple[int, ...]]:
    """Tokens of every row, field by field, read off the columns without touching the tokens."""
    import pyarrow.compute

    if not len(dataset):
        return []
    table = dataset.with_format("arrow")[:]
    columns = (pyarrow.compute.list_value_length(table[name]).to_pylist() for name in fields)
    return list(zip(*columns, strict=True))
