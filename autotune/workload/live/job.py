"""A Trainer taken apart into what a child process needs to make it again."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from autotune.configuration import Configuration
from autotune.errors import UsageError, WorkloadError
from autotune.workload.live.arguments import configuration_of, kept_arguments, precision_of
from autotune.workload.loaded import Evaluation

if TYPE_CHECKING:
    import torch
    from transformers import Trainer, TrainingArguments

MakeTrainer: TypeAlias = "Callable[[], Trainer]"

_OPTIONS = ("compute_loss_func", "optimizer_cls_and_kwargs")
"""Arguments of a Trainer that change its training step."""
_SET_BY_BASE = ("label_names", "can_return_loss", "model_accepts_loss_kwargs", "label_smoother")
"""Attributes that every Trainer has and that a subclass, or its user, may have set anew."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is trained and how, without anything that only watches, evaluates or writes."""

    model: torch.nn.Module
    arguments_class: type[TrainingArguments]
    arguments: Mapping[str, object]
    precision: str
    configuration: Configuration
    """The one that the job came with."""
    train_dataset: object
    data_collator: object | None = None
    """None lets the Trainer choose."""
    processing_class: object | None = None
    optimizers: tuple[object | None, object | None] = (None, None)
    """Optimizer and learning-rate schedule, where the user made them."""
    trainer_class: type[Trainer] | None = None
    trainer_options: Mapping[str, object] = field(default_factory=dict)
    """Further arguments of the Trainer."""
    trainer_attributes: Mapping[str, object] = field(default_factory=dict)
    """What a subclass, or its user, keeps on the Trainer."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    """How the job evaluates beside its training."""


def job_of_trainer(trainer: Trainer) -> Job:
    """Takes a Trainer apart; it stays as it is.

    Raises:
        UsageError: A kind of training that cannot be tuned, or a Trainer that trains right now.
        WorkloadError: It has no training data.
    """
    if getattr(trainer, "is_in_train", False):
        raise UsageError(
            "The Trainer is in the middle of train().",
            "Call tune() before train(), not from a callback.",
        )
    if getattr(trainer, "is_deepspeed_enabled", False):
        raise _sharded("DeepSpeed")
    if getattr(trainer, "is_fsdp_enabled", False):
        raise _sharded("FSDP")
    optimizer, schedule = trainer.optimizer, trainer.lr_scheduler
    if type(optimizer).__module__.startswith("accelerate."):
        # An earlier train() made and wrapped it; the next one makes its own.
        optimizer, schedule = None, None
    parameters = inspect.signature(base_trainer().__init__).parameters
    return job_of_parts(
        model=trainer.model,
        arguments=trainer.args,
        train_dataset=trainer.train_dataset,
        data_collator=trainer.data_collator,
        processing_class=getattr(trainer, "processing_class", None),
        optimizers=(optimizer, schedule),
        trainer_class=type(trainer),
        trainer_options={
            name: value
            for name in _OPTIONS
            if name in parameters and (value := getattr(trainer, name, None)) is not None
        },
        trainer_attributes={
            name: value
            for name, value in vars(trainer).items()
            if name in _SET_BY_BASE or name not in _names_of_base()
        },
        evaluation=_evaluation_of(trainer),
    )


def _evaluation_of(trainer: Trainer) -> Evaluation:
    """How a Trainer evaluates, as far as it decides what waits on the device."""
    arguments = trainer.args
    only_loss = arguments.prediction_loss_only or getattr(trainer, "compute_metrics", None) is None
    in_batches = getattr(arguments, "batch_eval_metrics", False)
    data = getattr(trainer, "eval_dataset", None)
    lengths = [len(d) for d in _each(data) if isinstance(d, Sized)]
    return Evaluation(
        keeps_outputs=not only_loss and not in_batches,
        keeps_inputs=not in_batches and _collects_inputs(arguments),
        accumulation_steps=arguments.eval_accumulation_steps,
        micro_batch_size=arguments.per_device_eval_batch_size,
        num_rows=max(lengths, default=None),
        preprocess_logits=getattr(trainer, "preprocess_logits_for_metrics", None),
    )


def _collects_inputs(arguments: TrainingArguments) -> bool:
    # Earlier versions had a switch for it.
    return "inputs" in getattr(arguments, "include_for_metrics", ()) or bool(
        getattr(arguments, "include_inputs_for_metrics", False)
    )


def _each(data: object) -> list[object]:
    """The data sets that evaluation goes through, one after another."""
    return list(data.values()) if isinstance(data, dict) else [data]


def job_of_parts(
    *,
    model: torch.nn.Module | None,
    arguments: TrainingArguments | None,
    train_dataset: object,
    data_collator: object | None = None,
    processing_class: object | None = None,
    optimizers: tuple[object | None, object | None] = (None, None),
    trainer_class: type[Trainer] | None = None,
    trainer_options: Mapping[str, object] | None = None,
    trainer_attributes: Mapping[str, object] | None = None,
    evaluation: Evaluation = Evaluation(),  # noqa: B008  (frozen)
) -> Job:
    """A job of the arguments that a Trainer would be made with.

    Raises:
        UsageError: A part is missing or of the wrong kind, or the training cannot be tuned.
        WorkloadError: There is no training data.
    """
    import torch
    from transformers import TrainingArguments

    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"The model is a {type(model).__name__}, not a torch.nn.Module.",
            "Give tune() the model itself, or a function that makes a Trainer.",
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise UsageError(
                f"{name} of the model is on the meta device, and has no values.",
                "Load or initialise all weights before tune(), or give it a function that makes "
                "the Trainer with them.",
            )
    if _is_purely_quantised(model):
        raise UsageError(
            "The model is quantised and has no adapters, so that it cannot be trained.",
            "Put adapters on it with peft's get_peft_model, or load it without quantisation.",
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(
            f"Every parameter of this {type(model).__name__} is frozen, so that there is nothing "
            "to train.",
            "Set requires_grad=True on what is to be trained, or put adapters on it.",
        )
    if not isinstance(arguments, TrainingArguments):
        raise UsageError(
            f"args is a {type(arguments).__name__}, not TrainingArguments.",
            "Give tune() the TrainingArguments that you would train with.",
        )
    if train_dataset is None:
        raise WorkloadError("There is no training data.", "Give a train_dataset.")
    if isinstance(train_dataset, Sized) and not len(train_dataset):
        raise WorkloadError("The training data has no rows.", "Give a train_dataset with rows.")
    if arguments.deepspeed:
        raise _sharded("DeepSpeed")
    if arguments.fsdp:
        raise _sharded("FSDP")
    num_devices = arguments.n_gpu
    if num_devices > 1:
        raise UsageError(
            f"This process would train on {num_devices} devices at once (DataParallel), which "
            "cannot be tuned.",
            "Start one process a device with torchrun, or show it one device only "
            "(CUDA_VISIBLE_DEVICES=0).",
        )
    return Job(
        model=model,
        arguments_class=type(arguments),
        arguments=kept_arguments(arguments),
        precision=precision_of(arguments),
        configuration=configuration_of(
            arguments, is_checkpointing=is_checkpointing(model), world_size=arguments.world_size
        ),
        train_dataset=train_dataset,
        data_collator=data_collator,
        processing_class=processing_class,
        optimizers=optimizers,
        trainer_class=trainer_class,
        trainer_options=trainer_options or {},
        trainer_attributes=trainer_attributes or {},
        evaluation=evaluation,
    )


def _is_purely_quantised(model: torch.nn.Module) -> bool:
    """Whether a Trainer would refuse to train it, as it does where there is nothing to train."""
    if not getattr(model, "is_quantized", False):
        return False
    has_adapters = hasattr(model, "peft_config") or getattr(model, "_hf_peft_config_loaded", False)
    quantizer = getattr(model, "hf_quantizer", None)
    return not has_adapters and not getattr(quantizer, "is_trainable", False)


def is_checkpointing(model: torch.nn.Module) -> bool:
    """Whether any layer was told to checkpoint."""
    return any(
        getattr(module, "gradient_checkpointing", False) is True for module in model.modules()
    )


def _sharded(what: str) -> UsageError:
    return UsageError(
        f"The job is trained under {what}, whose sharding cannot be tuned yet.",
        "Tune it without, or choose micro-batch size and accumulation by hand.",
    )


def base_trainer() -> type[Trainer]:
    """The class that every Trainer descends from."""
    from transformers import Trainer

    found: type[Trainer] = Trainer
    return found


@cache
def _names_of_base() -> frozenset[str]:
    """Names of all attributes that the base class sets on itself, in whatever method."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(base_trainer())))
    return frozenset(
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
