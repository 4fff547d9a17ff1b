"""Small live jobs: Trainers as a script or a notebook would make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

VOCABULARY = 60
LENGTHS = (3, 9, 5, 12, 7, 4, 16, 6)


CHECKPOINTING: str = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in {field.name for field in fields(TrainingArguments)}
)
"""The name of that switch in the installed version."""


def switch_on(model: PreTrainedModel) -> None:
    """Has the model checkpoint every layer, as its user would."""
    getattr(model, f"{CHECKPOINTING}_enable")()


class Tokens(Dataset[dict[str, list[int]]]):
    """Rows of token numbers of uneven lengths."""

    def __init__(self, num_rows: int = 32, lengths: Sequence[int] = LENGTHS) -> None:
        self.rows = [
            [(7 * i + 3 * j) % VOCABULARY for j in range(lengths[i % len(lengths)])]
            for i in range(num_rows)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self.rows[index]}


class TokenStream(IterableDataset[dict[str, list[int]]]):
    """The same rows without a length."""

    def __init__(self, num_rows: int = 32) -> None:
        self.tokens = Tokens(num_rows)

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter([self.tokens[i] for i in range(len(self.tokens))])


def pad(rows: Sequence[Mapping[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pads to the longest row of the batch."""
    width = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        length = len(row["input_ids"])
        ids[i, :length] = torch.tensor(row["input_ids"])
        mask[i, :length] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def gpt2(num_layers: int = 2) -> GPT2LMHeadModel:
    """A language model whose output layer shares the weights of its input."""
    set_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=32,
            n_embd=16,
            n_layer=num_layers,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def used_twice() -> GPT2LMHeadModel:
    """A language model that runs its one block twice in a forward pass."""
    model = gpt2()
    model.transformer.h[1] = model.transformer.h[0]
    model.config.use_cache = False
    return model


def arguments(directory: Path, **changes: object) -> TrainingArguments:
    """Arguments of a job with micro-batches of 2 and 2 accumulation steps."""
    values: dict[str, object] = {
        "output_dir": str(directory / "out"),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    return TrainingArguments(**values)


def trainer(
    directory: Path,
    *,
    kind: type[Trainer] = Trainer,
    model: PreTrainedModel | None = None,
    train_dataset: object | None = None,
    options: Mapping[str, object] | None = None,
    **changes: Any,
) -> Trainer:
    """A Trainer of the model above on the rows above."""
    return kind(
        model=model or gpt2(),
        args=arguments(directory, **changes),
        train_dataset=train_dataset or Tokens(),
        data_collator=pad,
        **(options or {}),
    )


class WeightedTrainer(Trainer):  # type: ignore[misc]
    """A subclass whose constructor takes more, and whose loss needs it."""

    def __init__(self, *args: object, weight: float, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.weight = weight

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The model's loss, weighted."""
        return self.weight * super().compute_loss(model, inputs, *args, **kwargs)


class BatchCounter:
    """Counts rows and micro-batches of the forward passes of a model in training mode."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.rows: list[int] = []
        self._handle = model.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, module: torch.nn.Module, args: object, kwargs: dict[str, torch.Tensor]) -> None:
        if module.training:
            self.rows.append(kwargs["input_ids"].shape[0])

    def close(self) -> None:
        """Stops counting."""
        self._handle.remove()
