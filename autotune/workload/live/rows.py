"""Chooses training samples of a live data set, whose rows may be whatever its collator takes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from statistics import median_low
from typing import TYPE_CHECKING

from autotune.errors import WorkloadError
from autotune.workload.data import PEEK_ROWS
from autotune.workload.loaded import Batch, Row, repeat_to
from autotune.workload.rows import field_lengths, longest_first

if TYPE_CHECKING:
    import torch

SCAN_S = 5.0
"""How long rows that must be made one by one are looked through for the longest."""
_TOKENS = "input_ids"
_LABELS = "labels"


@dataclass(frozen=True, kw_only=True)
class LiveRows:
    """Rows of a data set that were looked at, with what they measure.

    Sizes are tokens where rows have `input_ids`, else the elements of all that they hold.
    """

    dataset: object
    num_rows: int | None
    """Rows of one epoch; None for a stream."""
    places: Sequence[int] | None
    """Of a map-style data set: where the rows stand that were looked at, in sampler order."""
    rows: Sequence[Row]
    """Of a stream: the rows that were looked at."""
    sizes: Sequence[int]
    widths: Sequence[tuple[int, ...]]
    """Of the same rows, the sizes of all fields that a batch may be as wide as."""
    counts_tokens: bool

    @property
    def tokens_median(self) -> int | None:
        """The middle length of the rows that were looked at."""
        return median_low(self.sizes) if self.counts_tokens else None

    @property
    def tokens_max(self) -> int | None:
        """The greatest length of the rows that were looked at."""
        return max(self.sizes) if self.counts_tokens else None

    @property
    def note(self) -> str | None:
        """What the longest rows do not cover, where not all were looked at."""
        if self.num_rows is None:
            return (
                "The longest sample of a stream is not known: memory is measured with the longest "
                f"of the first {len(self.sizes)} rows."
            )
        if len(self.sizes) < self.num_rows:
            return (
                f"Memory is measured with the longest of {len(self.sizes)} rows, out of "
                f"{self.num_rows}: looking at all of them would have taken too long."
            )
        return None

    def longest(self, num: int) -> list[Row]:
        """Of the rows that were looked at, those that make the largest batch together."""
        return repeat_to([self._row(i) for i in longest_first(self.widths, num)], num)

    def typical(self, num: int) -> list[Row]:
        """The first rows in the order in which they are trained on."""
        return repeat_to([self._row(i) for i in range(min(num, len(self.sizes)))], num)

    def _row(self, index: int) -> Row:
        if self.places is None:
            return self.rows[index]
        row: Row = self.dataset[self.places[index]]  # type: ignore[index]
        return row


def look_at(dataset: object, order: Iterable[int] | None) -> LiveRows:
    """Looks through a data set for its longest rows.

    Args:
        dataset: As the loader of the training data reads it.
        order: The indices of one epoch in the order in which they are trained on; None for a
            stream.

    Raises:
        WorkloadError: The data yields no row.
    """
    if order is None:
        rows: list[Row] = list(islice(iter(dataset), PEEK_ROWS))  # type: ignore[call-overload]
        found = LiveRows(
            dataset=dataset,
            num_rows=None,
            places=None,
            rows=rows,
            sizes=[row_size(row) for row in rows],
            widths=[_widths(row) for row in rows],
            counts_tokens=bool(rows) and _has_tokens(rows[0]),
        )
    else:
        found = _map_rows(dataset, list(order))
    if not found.sizes:
        raise WorkloadError("The training data yields no row.", "Give data with rows.")
    return found


def _map_rows(dataset: object, order: Sequence[int]) -> LiveRows:
    columns = _token_columns(dataset)
    if columns is not None:
        widths = [columns[i] for i in order]
        sizes = [width[0] for width in widths]
        counts_tokens = True
    else:
        sizes, widths, counts_tokens = [], [], False
        deadline_s = time.monotonic() + SCAN_S
        for place in order:
            row: Row = dataset[place]  # type: ignore[index]
            sizes.append(row_size(row))
            widths.append(_widths(row))
            counts_tokens = _has_tokens(row)
            if time.monotonic() > deadline_s:
                break
    return LiveRows(
        dataset=dataset,
        num_rows=len(dataset),  # type: ignore[arg-type]
        places=order[: len(sizes)],
        rows=(),
        sizes=sizes,
        widths=widths,
        counts_tokens=counts_tokens,
    )


def _token_columns(dataset: object) -> list[tuple[int, ...]] | None:
    """Lengths of all rows, read off columns, where the data set keeps its tokens in one."""
    import datasets
    import pyarrow

    if not isinstance(dataset, datasets.Dataset) or _TOKENS not in dataset.column_names:
        return None
    if dataset.format["type"] == "custom":
        return None
    # Labels of classes are no lists, and have no length.
    for fields in ((_TOKENS, _LABELS), (_TOKENS,)):
        if _LABELS in fields and _LABELS not in dataset.column_names:
            continue
        try:
            return [tuple(num or 0 for num in row) for row in field_lengths(dataset, fields)]
        except pyarrow.ArrowNotImplementedError:
            continue
    return None


def _has_tokens(row: object) -> bool:
    return isinstance(row, Mapping) and _TOKENS in row


def _widths(row: object) -> tuple[int, ...]:
    """What a batch with a row may be as wide as: its tokens, and its labels where it has many."""
    has_labels = _has_tokens(row) and _LABELS in row  # type: ignore[operator]
    return row_size(row), _elements(row[_LABELS]) if has_labels else 0  # type: ignore[index]


def row_size(row: object) -> int:
    """Tokens of a row, or how many elements it holds where it has no `input_ids`."""
    if isinstance(row, Mapping):
        return _elements(row[_TOKENS]) if _TOKENS in row else _elements(list(row.values()))
    return _elements(row)


def _elements(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    shape = getattr(value, "shape", None)
    if shape is not None:
        count = 1
        for side in shape:
            count *= int(side)
        return count
    if isinstance(value, Mapping):
        return _elements(list(value.values()))
    if isinstance(value, Sequence):
        if value and isinstance(value[0], int | float | bool):
            return len(value)
        return sum(map(_elements, value))
    return 1


def order_of(loader: torch.utils.data.DataLoader[Row], dataset: object) -> Iterable[int] | None:
    """The indices of one epoch as a loader draws them; None where there are none to draw."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return None
    batches = getattr(loader, "batch_sampler", None)
    try:
        order = list(chain.from_iterable(batches)) if batches is not None else []
    except TypeError:
        order = []
    if order and all(isinstance(index, int) for index in order):
        return order
    return range(len(dataset))


def count_tokens(batch: Batch) -> int:
    """Tokens of a collated batch without padding; 0 where it holds none."""
    mask = batch.get("attention_mask")
    if mask is not None and mask.ndim == 2:
        return int(mask.sum())
    tokens = batch.get(_TOKENS)
    return int(tokens.numel()) if tokens is not None else 0
