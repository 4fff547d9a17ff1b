"""A workload of a config alone: fake weights that never were anywhere, and made-up samples."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode

from autotune.errors import WorkloadError
from autotune.tracing.numbers import Numbers
from autotune.workload import model as models
from autotune.workload.digest import workload_digest
from autotune.workload.facts import WorkloadFacts
from autotune.workload.load import versions
from autotune.workload.loaded import TASK_LOSS_ITEMS, Batch, LoadedWorkload, Row
from autotune.workload.lora import add_adapters, check_installed
from autotune.workload.options import training_options
from autotune.workload.resolve import resolve_model
from autotune.workload.spec import Columns, Task, WorkloadSpec
from autotune.workload.tasks import recipe_class

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

NUM_ROWS = 4096
"""Rows that the made-up data claims to have."""
USUAL_IMAGE_SIZE = 224
"""Pixels of a side, where the config does not tell."""


def make_up(spec: WorkloadSpec, working_directory: Path, mode: FakeTensorMode) -> LoadedWorkload:
    """The workload of a spec without data, on fake weights.

    Args:
        spec: Names no dataset; weights are not looked at, also where the model has some.
        working_directory: What relative paths are relative to.
        mode: Of the fake weights.

    Raises:
        UsageError: A choice that cannot be followed, such as an unknown optimizer.
        WorkloadError: The model is missing, or does not fit the task.
    """
    spec = resolve_model(spec, working_directory)
    if spec.lora is not None:
        check_installed()
    optim, arguments = training_options(spec, trains_here=False)
    transformers.utils.logging.disable_progress_bar()
    notes: list[str] = []
    recipe = recipe_class(spec.task)
    config = models.load_config(spec)
    models.take_own_attention(config, notes)
    config_only = replace(spec, model=None, model_config=spec.model_config or spec.model)
    _, weights_from = models.weights_dtype(spec, config)
    with mode, Numbers(), _undrawn():
        base = models.build_model(config_only, config, recipe.auto_model, notes)
        model: torch.nn.Module = base
        if spec.lora is not None:
            with _unmoved():
                model = add_adapters(base, spec.lora, recipe.peft_task)
    if getattr(base.config, "pad_token_id", None) is None:
        # As with a tokenizer that pads with its end of sequence.
        base.config.pad_token_id = _first(getattr(base.config, "eos_token_id", None)) or 0
    if spec.task == "image-classification":
        max_length, row = None, _image(base)
    else:
        max_length = models.chosen_max_length(spec, base, recipe.usual_max_length, None, notes)
        row = _row(spec.task, base, max_length)
    rows = _Repeated(row)
    parameters = list(model.parameters())
    return LoadedWorkload(
        facts=WorkloadFacts(
            name=spec.name,
            task=spec.task,
            model_class=type(model).__name__,
            num_parameters=sum(p.numel() for p in parameters),
            num_trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
            parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
            num_rows=NUM_ROWS,
            tokens_median=max_length,
            tokens_max=max_length,
            precision=spec.precision,
            optim=optim,
            has_batch_norm=models.has_batch_norm(model),
            batch_dependent_loss=models.batch_dependent_loss(model),
            notes=tuple(notes),
            versions=versions(spec),
            weights_from=weights_from,
            digest=workload_digest(spec),
            chosen=replace(spec, columns=Columns(), max_length=max_length, optim=optim),
        ),
        model=model,
        train_dataset=rows,
        data_collator=_stack,
        processing_class=None,
        arguments=arguments,
        loss_items=TASK_LOSS_ITEMS[spec.task],
        longest_rows=rows.first,
        typical_rows=rows.first,
        count_tokens=lambda batch: int(batch["attention_mask"].sum()) if max_length else 0,
    )


@contextmanager
def _undrawn() -> Iterator[None]:
    """Lets weights be as they come: there are no values to draw, and some rules look at them."""
    name = "_initialize_weights"
    if not hasattr(transformers.PreTrainedModel, name):
        yield
        return
    with patch.object(transformers.PreTrainedModel, name, lambda *_, **__: None):
        yield


@contextmanager
def _unmoved() -> Iterator[None]:
    """Lets modules stay where and what they are.

    Moving one swaps its tensors, which fake ones do not allow.
    """
    with patch.object(torch.nn.Module, "to", lambda module, *_, **__: module):
        yield


class _Repeated(torch.utils.data.Dataset[Row]):
    """The same row over and over."""

    def __init__(self, row: Row) -> None:
        self._row = row

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, index: int) -> Row:
        return self._row

    def first(self, num: int) -> list[Row]:
        return [self._row] * num


def _stack(rows: list[Row]) -> Batch:
    """A batch of the same row over and over, which is in memory once."""
    return {
        name: (tensor := _tensor(value)).expand(len(rows), *tensor.shape)
        for name, value in rows[0].items()
    }


def _tensor(value: object) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def _first(value: object) -> int | None:
    """A token's number, or the first of several."""
    if isinstance(value, list | tuple) and value:
        value = value[0]
    return value if isinstance(value, int) else None


def _text(config: PretrainedConfig, num_tokens: int) -> torch.Tensor:
    """Tokens of no special meaning, but for the one that ends them, which some heads look for."""
    special = {_first(value) for name, value in vars(config).items() if name.endswith("_token_id")}
    plain = next(number for number in itertools.count(1) if number not in special)
    tokens = torch.full((num_tokens,), plain, dtype=torch.int64)
    end = _first(getattr(config, "eos_token_id", None))
    if end is not None:
        tokens[-1] = end
    return tokens


def _class(config: PretrainedConfig) -> torch.Tensor:
    """What a sample is, in the form that the loss of the model's head takes."""
    num_labels = getattr(config, "num_labels", 2)
    match getattr(config, "problem_type", None):
        case "multi_label_classification":
            return torch.zeros(num_labels)
        case "regression":
            return torch.zeros(num_labels).squeeze()
        case None if num_labels == 1:
            return torch.tensor(0.0)
    return torch.tensor(0)


def _row(task: Task, model: PreTrainedModel, num_tokens: int) -> Mapping[str, torch.Tensor]:
    """A sample with the fields that the task's collator hands to the model.

    Raises:
        WorkloadError: The decoder of the model does not know how to start.
    """
    tokens = _text(model.config, num_tokens)
    row = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    accepted = inspect.signature(model.forward).parameters
    if "token_type_ids" in accepted and getattr(model.config, "type_vocab_size", 0) > 1:
        row["token_type_ids"] = torch.zeros_like(tokens)
    match task:
        case "sequence-classification":
            row["labels"] = _class(model.config)
        case "question-answering":
            row["start_positions"] = row["end_positions"] = torch.tensor(0)
        case "seq2seq-lm":
            if getattr(model.config, "decoder_start_token_id", None) is None:
                raise WorkloadError(
                    "The config of the model has no decoder_start_token_id, so that the decoder "
                    "cannot start.",
                    "Add it to config.json; for T5 it is the pad_token_id.",
                )
            row |= {"labels": tokens, "decoder_input_ids": tokens}
        case _:
            row["labels"] = tokens
    return row


def _image(model: PreTrainedModel) -> Mapping[str, torch.Tensor]:
    """An image of the size that the model's config tells, and its class."""
    # Models of images and texts keep what is about images apart.
    config = getattr(model.config, "vision_config", None) or model.config
    size = getattr(config, "image_size", None) or USUAL_IMAGE_SIZE
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(config, "num_channels", 3)
    return {"pixel_values": torch.zeros(channels, height, width), "labels": _class(model.config)}
