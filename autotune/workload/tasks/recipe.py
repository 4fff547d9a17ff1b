"""What every task tells the loader, in the order in which the loader asks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from autotune.errors import WorkloadError
from autotune.workload.loaded import Batch, Collator
from autotune.workload.spec import Columns, Task

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from autotune.workload.data import AnyDataset

Samples: TypeAlias = Mapping[str, Sequence[object]]
"""A batch of raw rows, column by column, as `Dataset.map(batched=True)` hands it over."""
Tokenised: TypeAlias = dict[str, list[object]]


@dataclass(kw_only=True)
class Recipe(ABC):
    """How one task makes training samples of raw rows.

    The loader makes it, calls `learn_labels` on the raw rows, `configure` before the model is
    built, and then `tokenise` and `collator`.
    """

    columns: Columns
    tokenizer: PreTrainedTokenizerBase
    packing: bool

    auto_model: ClassVar[str]
    """The class of transformers that holds a model with the head of this task."""
    usual_max_length: ClassVar[int]
    """Tokens a sample is cut at where neither the user nor the model says less."""
    peft_task: ClassVar[str | None] = None
    """The name of this task in `peft.TaskType`."""
    length_fields: ClassVar[tuple[str, ...]] = ("input_ids",)
    """Fields whose lengths add up to the tokens of a row."""
    least_tokens: ClassVar[int] = 1
    """Rows with fewer tokens carry no loss and are left out."""

    def learn_labels(self, dataset: AnyDataset) -> None:  # noqa: B027
        """Looks through the raw rows for the classes; most tasks have none.

        Raises:
            WorkloadError: The labels cannot be classes.
        """

    def configure(self, config: PretrainedConfig) -> None:  # noqa: B027
        """Sets what the head of the model depends on."""

    @abstractmethod
    def tokenise(self, rows: Samples, max_length: int) -> Tokenised:
        """Turns raw rows into training samples; runs inside `Dataset.map(batched=True)`."""

    @abstractmethod
    def collator(self, model: PreTrainedModel) -> Collator:
        """The collator of transformers that this task is trained with."""

    def count_tokens(self, batch: Batch) -> int:
        """Tokens of a collated batch without padding."""
        mask = batch.get("attention_mask")
        return int(mask.sum() if mask is not None else batch["input_ids"].numel())


def require_fast(tokenizer: PreTrainedTokenizerBase, task: Task) -> None:
    """Raises where a task needs to know which characters became which token.

    Raises:
        WorkloadError: The tokenizer cannot say.
    """
    if not tokenizer.is_fast:
        raise WorkloadError(
            f"The task {task} needs a fast tokenizer, and {type(tokenizer).__name__} is none.",
            "Give a directory with a tokenizer.json to --tokenizer.",
        )


class UnpaddedCollator:
    """Batches of one sample, for tokenizers that cannot pad; larger ones are refused in words."""

    def __call__(self, rows: list[Mapping[str, object]]) -> Batch:
        """Makes tensors of a single row."""
        from transformers import default_data_collator

        if len(rows) > 1:
            raise ValueError(
                "Cannot handle batch sizes > 1 if no padding token is defined. Name one with "
                "--pad-token, for example --pad-token eos."
            )
        batch: Batch = default_data_collator([dict(rows[0])])
        return batch
