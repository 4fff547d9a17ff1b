"""The fields of a live TrainingArguments that a trial needs, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import TYPE_CHECKING

from autotune.configuration import Checkpointing, Configuration

if TYPE_CHECKING:
    from transformers import TrainingArguments

_LEFT_OUT = frozenset(
    {
        # The knobs, and what decides the length of a run.
        "per_device_train_batch_size",
        "per_gpu_train_batch_size",
        "gradient_accumulation_steps",
        "auto_find_batch_size",
        "activation_checkpointing",
        "activation_checkpointing_kwargs",
        "gradient_checkpointing",
        "gradient_checkpointing_kwargs",
        "max_steps",
        "num_train_epochs",
        "resume_from_checkpoint",
        "ignore_data_skip",
        # What writes, reports or reaches out.
        "output_dir",
        "overwrite_output_dir",
        "logging_dir",
        "logging_strategy",
        "logging_first_step",
        "logging_steps",
        "log_level",
        "log_level_replica",
        "log_on_each_node",
        "report_to",
        "run_name",
        "project",
        "trackio_space_id",
        "disable_tqdm",
        "debug",
        # What happens beside the training steps.
        "do_train",
        "do_eval",
        "do_predict",
        "prediction_loss_only",
        "per_device_eval_batch_size",
        "per_gpu_eval_batch_size",
        "evaluation_strategy",
        "load_best_model_at_end",
        "metric_for_best_model",
        "greater_is_better",
        "batch_eval_metrics",
        "skip_memory_metrics",
        # What belongs to one launch.
        "local_rank",
        "ddp_backend",
        "ddp_timeout",
        "deepspeed",
        "fsdp",
        "fsdp_config",
        "fsdp_min_num_params",
        "fsdp_transformer_layer_cls_to_wrap",
    }
)
_LEFT_OUT_PREFIXES = ("hub_", "push_to_hub", "save_", "eval_")


def kept_arguments(arguments: TrainingArguments) -> Mapping[str, object]:
    """What of the arguments changes a training step, where it differs from the defaults.

    Nothing that names an account, a place or a token is among it.
    """
    kept = {
        field.name: value
        for field in fields(arguments)
        if field.init
        and field.name not in _LEFT_OUT
        and not field.name.startswith(_LEFT_OUT_PREFIXES)
        and (value := _plain(getattr(arguments, field.name))) != _default(field)
    }
    if kept.get("lr_scheduler_type") == "reduce_lr_on_plateau":
        # It waits for evaluations, which trials have none of; a step costs the same without it.
        kept["lr_scheduler_type"] = "constant"
        kept.pop("lr_scheduler_kwargs", None)
    return kept


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if type(value).__name__ == "AcceleratorConfig":
        config: dict[str, object] = value.to_dict()  # type: ignore[attr-defined]
        accumulation = config.get("gradient_accumulation_kwargs")
        if isinstance(accumulation, Mapping):
            # A Trainer leaves its own count in the dictionary that it was given.
            config["gradient_accumulation_kwargs"] = {
                name: item for name, item in accumulation.items() if name != "num_steps"
            }
        return config
    return value


def _default(field: Field[object]) -> object:
    if field.default is not MISSING:
        return _plain(field.default)
    if field.default_factory is not MISSING:
        return _plain(field.default_factory())
    return MISSING


def configuration_of(
    arguments: TrainingArguments, *, is_checkpointing: bool, world_size: int
) -> Configuration:
    """The configuration that arguments put in force.

    Args:
        arguments: Of the job.
        is_checkpointing: Whether the model was told to checkpoint without them.
        world_size: Ranks that train together.
    """
    return Configuration(
        micro_batch_size=arguments.per_device_train_batch_size,
        accumulation_steps=arguments.gradient_accumulation_steps,
        world_size=world_size,
        checkpointing=_checkpointing(arguments, is_checkpointing=is_checkpointing),
    )


def _checkpointing(arguments: TrainingArguments, *, is_checkpointing: bool) -> Checkpointing:
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        if getattr(arguments, name, False):
            options = getattr(arguments, f"{name}_kwargs", None) or {}
            return Checkpointing(
                every_n_layers=int(options.get("every_n_layers") or 1),
                offload=bool(options.get("offload", False)),
            )
    return Checkpointing(every_n_layers=1 if is_checkpointing else None, offload=False)


def precision_of(arguments: TrainingArguments) -> str:
    """fp32, bf16 or fp16."""
    return "bf16" if arguments.bf16 else "fp16" if arguments.fp16 else "fp32"
