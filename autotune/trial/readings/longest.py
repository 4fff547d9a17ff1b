"""The longest samples, as an optimizer step can meet them at worst."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autotune.trial.stepper import Stepper
from autotune.workload.loaded import Batch, repeat_to

TYPICAL_ROWS = 8
"""Samples that are collated with the longest one, to see whether they are padded."""


def longest_window(stepper: Stepper) -> list[Batch]:
    """The micro-batches of one optimizer step on the longest samples.

    No micro-batch holds more rows than there are, as no data loader would. Where samples of unequal
    length are padded, each of several rows has at least one padded place: models leave out a mask
    that hides nothing, and with it memory that a batch of the same size with one short row takes.
    """
    configuration, workload = stepper.configuration, stepper.workload
    size = min(
        configuration.micro_batch_size, workload.facts.num_rows or configuration.micro_batch_size
    )
    num = size * configuration.accumulation_steps
    rows = repeat_to(workload.longest_rows(num), num)
    if size == 1:
        # A row alone is as wide as itself, whatever the longest of each field.
        rows = [*workload.longest_rows(1), *rows][:num]
    window = [stepper.collate(rows[start : start + size]) for start in range(0, num, size)]
    if size > 1 and (any(map(has_padding, window)) or pads(stepper)):
        return [with_padding(batch) for batch in window]
    return window


def pads(stepper: Stepper) -> bool:
    """Whether samples of this job are padded where they meet longer ones."""
    workload = stepper.workload
    if workload.count_rows is not None:
        # Rows are joined end to end.
        return False
    rows = [*workload.longest_rows(1), *workload.typical_rows(TYPICAL_ROWS)]
    try:
        return has_padding(stepper.collate(rows))
    except ValueError:
        # The collator takes no rows of unequal length.
        return False


def has_padding(batch: Mapping[str, object]) -> bool:
    """Whether the attention mask of a batch hides something."""
    mask = batch.get("attention_mask")
    return isinstance(mask, torch.Tensor) and mask.ndim == 2 and not bool(mask.all())


def with_padding(batch: Batch) -> Batch:
    """The batch with at least one padded place, where it has an attention mask."""
    mask = batch.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or not bool(mask.all()):
        return batch
    mask = mask.clone()
    mask[-1, -1] = 0
    return {**batch, "attention_mask": mask}
