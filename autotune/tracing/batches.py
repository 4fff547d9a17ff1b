"""Batches for a trace: the shape of the longest samples at any micro-batch size, real values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from autotune.trial.readings.longest import has_padding, pads, with_padding
from autotune.trial.stepper import Stepper
from autotune.workload.loaded import Batch, num_rows

MOST_ROWS = 64
"""Longest samples that are collated together, so that every field has its longest."""


@dataclass
class Batches:
    """Batches of one workload; the same rows for every stepper.

    Args:
        is_padded: Whether there is padding; None asks the data whether rows of unequal length meet.
    """

    is_padded: bool | None = None
    _whole: Batch | None = field(default=None, init=False)
    _pads_single_rows: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        # Of data, a row alone meets no longer one.
        self._pads_single_rows = bool(self.is_padded)

    def look_at(self, stepper: Stepper) -> None:
        """Collates the samples as the stepper's loop does.

        Raises:
            ValueError: The collator does not take them.
        """
        if self._whole is not None:
            return
        workload = stepper.workload
        try:
            whole = stepper.collate(workload.longest_rows(MOST_ROWS))
            are_padded = pads(stepper)
        except ValueError:
            # Without a padding token there is no batch of two; one row has the shape of any.
            whole, are_padded = stepper.collate(workload.longest_rows(1)), False
        if self.is_padded is None:
            self.is_padded = has_padding(whole) or are_padded
        self._whole = whole

    @property
    def whole(self) -> Batch:
        """The longest samples, collated together; empty before anything was looked at."""
        return self._whole or {}

    @property
    def num_rows(self) -> int:
        """Rows of `whole`."""
        return num_rows(self.whole)

    def of(self, stepper: Stepper, size: int) -> Batch:
        """A batch of so many rows, as long as the longest samples; padded, where there is padding.

        Real tensors; the caller must not change them.
        """
        self.look_at(stepper)
        assert self._whole is not None
        if stepper.workload.count_rows is not None:
            # The rows are joined into one, so that they cannot be told apart afterwards.
            return stepper.collate(stepper.workload.longest_rows(1) * size)
        whole = self._whole
        if size == 1:
            # A row alone is as wide as itself, whatever the longest of each field.
            whole = stepper.collate(stepper.workload.longest_rows(1))
        total = num_rows(whole)
        batch: Batch = {}
        for name, value in whole.items():
            if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] == total:
                repeats = -(-size // total)
                value = value[:size] if repeats == 1 else torch.cat([value] * repeats)[:size]
            batch[name] = value
        if not self.is_padded:
            return _without_padding(batch)
        return batch if size == 1 and not self._pads_single_rows else with_padding(batch)


def _without_padding(batch: Batch) -> Batch:
    mask = batch.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2:
        return batch
    return {**batch, "attention_mask": torch.ones_like(mask)}


def longest_tokens(batch: Mapping[str, object]) -> int | None:
    """Tokens of a row, padding included; None where rows have no tokens."""
    return max(
        (v.shape[1] for v in batch.values() if isinstance(v, torch.Tensor) and v.ndim == 2),
        default=None,
    )


def batch_bytes(batch: Mapping[str, object]) -> int:
    """Bytes of the tensors of a batch."""
    return sum(
        value.numel() * value.element_size()
        for value in batch.values()
        if isinstance(value, torch.Tensor)
    )
