"""Settings that count optimizer steps, kept at the same number of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING

from autotune.configuration import Configuration

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments

STEP_FIELDS = ("max_steps", "warmup_steps", "eval_steps", "save_steps", "logging_steps")
"""Fields of TrainingArguments that count optimizer steps; a fraction is one of the whole run."""


def rescale(arguments: TrainingArguments, before: int, after: int) -> Iterator[str]:
    """Sets every count of steps anew, so that it stands for as many rows as before.

    Args:
        arguments: Changed in place.
        before: Global batch size that the counts were made for.
        after: The one that holds from now on.

    Yields:
        A sentence for each change.
    """
    if before == after:
        return
    for name in STEP_FIELDS:
        steps = getattr(arguments, name, None)
        if not isinstance(steps, int | float) or steps < 1 or not _counts(arguments, name):
            continue
        anew = max(1, round(steps * before / after))
        if anew == steps:
            continue
        setattr(arguments, name, anew)
        yield (
            f"{name} is {getattr(arguments, name)} instead of {steps:g}: a step trains on {after} "
            f"rows instead of {before}"
        )
    evaluation, saving = getattr(arguments, "eval_steps", None), arguments.save_steps
    if arguments.load_best_model_at_end and evaluation and saving >= 1 and saving % evaluation:
        arguments.save_steps = max(1, round(saving / evaluation)) * evaluation
        yield (
            f"save_steps is {arguments.save_steps}, a multiple of eval_steps, as "
            "load_best_model_at_end needs it"
        )


def _counts(arguments: TrainingArguments, name: str) -> bool:
    """Whether a field is looked at: those of a strategy only where it goes by steps."""
    strategy = getattr(arguments, f"{name.removesuffix('_steps')}_strategy", "steps")
    return getattr(strategy, "value", strategy) == "steps"


def differences(trainer: Trainer, before: Configuration, after: Configuration) -> Iterator[str]:
    """What a change of configuration does to the schedule although no setting tells of it."""
    if before.global_batch_size != after.global_batch_size:
        yield (
            f"the global batch size is {after.global_batch_size} instead of "
            f"{before.global_batch_size}, as the goal asked; the learning rate stays"
        )
        if trainer.lr_scheduler is not None:
            yield (
                "the learning-rate schedule that the Trainer was given counts its own steps; make "
                "it anew for the new number of steps"
            )
    dataset = trainer.train_dataset
    if trainer.args.dataloader_drop_last and isinstance(dataset, Sized):
        steps = [_steps_per_epoch(len(dataset), c) for c in (before, after)]
        if steps[0] != steps[1] and before.global_batch_size == after.global_batch_size:
            yield (
                f"an epoch has {steps[1]} optimizer steps instead of {steps[0]}, since "
                "dataloader_drop_last drops rows by the micro-batch"
            )


def _steps_per_epoch(num_rows: int, configuration: Configuration) -> int:
    """As Trainer counts them, where the last incomplete micro-batch is dropped."""
    batches = num_rows // configuration.world_size // configuration.micro_batch_size
    return max(1, math.ceil(batches / configuration.accumulation_steps))
