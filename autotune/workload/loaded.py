"""A workload as a child process holds it: model, data and training choices, for any stepper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from autotune.workload.facts import WorkloadFacts

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset
    from transformers import Trainer, TrainingArguments

Row: TypeAlias = Mapping[str, object]
"""One training sample, as the collator takes it."""
Batch: TypeAlias = dict[str, "torch.Tensor"]
Collator: TypeAlias = Callable[[list[Row]], Batch]
LossItems: TypeAlias = Literal["rows", "tokens", "shifted_tokens"]
"""What the model's loss is the mean of: samples, labels that are not -100, or such labels
without the first of each row, as next-token losses shift them."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How the job evaluates beside its training."""

    keeps_outputs: bool = False
    """Whether logits and labels of the whole evaluation data are collected, for metrics."""
    keeps_inputs: bool = False
    """Whether the model's main input is collected as well."""
    accumulation_steps: int | None = None
    """Steps after which collected outputs are moved to the host; None waits for the last one."""
    micro_batch_size: int = 8
    """`per_device_eval_batch_size`."""
    num_rows: int | None = None
    """Evaluation samples, where they are known."""
    preprocess_logits: Callable[..., object] | None = None
    """What logits are turned into before they are collected."""


@dataclass(frozen=True, kw_only=True)
class LoadedWorkload:
    """What every source of workloads yields in a child process.

    A worker loads it once and forks a clean child for every measurement, so nothing here may have
    run a forward or backward pass.
    """

    facts: WorkloadFacts
    model: torch.nn.Module
    """With the weights that every trial starts from, on the CPU, in training mode."""
    train_dataset: Dataset[Row]
    """Map-style or iterable; rows are tokenised and hold what the model takes, and no more."""
    data_collator: Collator
    processing_class: object | None
    """The tokenizer or processor that Trainer is given."""
    arguments: Mapping[str, object]
    """TrainingArguments fields that belong to the workload (precision, optim, learning rate, …),
    never one that a knob decides."""
    loss_items: LossItems
    longest_rows: Callable[[int], list[Row]]
    """n training samples that make the largest batch together: those with the longest of each
    field, then those with the most tokens; repeated where there are fewer."""
    count_tokens: Callable[[Batch], int]
    """Tokens of a collated batch without padding."""
    typical_rows: Callable[[int], list[Row]] = field(repr=False)
    """The first n samples in the user's sampler order."""
    count_rows: Callable[[Batch], int] | None = None
    """Rows of a collated batch, where its tensors do not have one entry a row."""
    optimizers: tuple[object | None, object | None] = (None, None)
    """Optimizer and learning-rate schedule of the user's own making, bound to `model`."""
    arguments_class: type[TrainingArguments] | None = None
    """A subclass of TrainingArguments; None is TrainingArguments itself."""
    trainer_class: type[Trainer] | None = None
    """A subclass of Trainer; None is Trainer itself."""
    trainer_options: Mapping[str, object] = field(default_factory=dict)
    """Further arguments of the Trainer, such as a loss function."""
    trainer_attributes: Mapping[str, object] = field(default_factory=dict)
    """What the Trainer keeps on itself beyond what its base class does."""
    evaluation: Evaluation = Evaluation()


TASK_LOSS_ITEMS: Mapping[str, LossItems] = {
    "causal-lm": "shifted_tokens",
    "masked-lm": "tokens",
    "sequence-classification": "rows",
    "token-classification": "tokens",
    "question-answering": "rows",
    "seq2seq-lm": "tokens",
    "image-classification": "rows",
}


def num_rows(batch: Batch) -> int:
    """Rows of a collated batch whose tensors have one entry a row."""
    import torch

    for value in batch.values():
        if isinstance(value, torch.Tensor) and value.ndim > 0:
            return int(value.shape[0])
    return 0


def repeat_to(rows: Sequence[Row], num: int) -> list[Row]:
    """The first `num` of `rows`, starting over where there are fewer.

    Raises:
        ValueError: There are no rows at all.
    """
    if not rows:
        raise ValueError("There are no rows.")
    return [rows[i % len(rows)] for i in range(num)]
