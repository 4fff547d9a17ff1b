"""The knobs in the names of the installed transformers, and switching checkpointing on a model."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields

import torch
from transformers import TrainingArguments

from autotune.configuration import Checkpointing, Configuration
from autotune.trial.device import current_device
from autotune.workload.loaded import LoadedWorkload


def checkpointing_kwargs(checkpointing: Checkpointing) -> dict[str, object]:
    """The keyword dictionary that goes with the switch, with defaults left out."""
    kwargs: dict[str, object] = {"use_reentrant": False}
    if checkpointing.every_n_layers not in (None, 1):
        kwargs["every_n_layers"] = checkpointing.every_n_layers
    if checkpointing.offload:
        kwargs["offload"] = True
    return kwargs


def knob_fields(configuration: Configuration) -> dict[str, object]:
    """TrainingArguments fields that put a configuration in force.

    The checkpointing switch goes by its new name where the installed class has it.
    """
    values: dict[str, object] = {
        "per_device_train_batch_size": configuration.micro_batch_size,
        "gradient_accumulation_steps": configuration.accumulation_steps,
    }
    known = {field.name for field in fields(TrainingArguments)}
    name = (
        "activation_checkpointing"
        if "activation_checkpointing" in known
        else "gradient_checkpointing"
    )
    values[name] = configuration.checkpointing.is_on
    if configuration.checkpointing.is_on:
        values[f"{name}_kwargs"] = checkpointing_kwargs(configuration.checkpointing)
    return values


def is_stream(workload: LoadedWorkload) -> bool:
    """Whether the training data has no length."""
    return isinstance(workload.train_dataset, torch.utils.data.IterableDataset)


def training_arguments(
    workload: LoadedWorkload,
    configuration: Configuration,
    output_dir: str,
    *,
    find_unused: bool = False,
) -> TrainingArguments:
    """The arguments of a trial: the workload's own, the knobs, nothing that writes or reports.

    Args:
        workload: What is trained.
        configuration: How.
        output_dir: For what a loop insists on writing.
        find_unused: Whether ranks that exchange gradients look for parameters without one.
    """
    values: dict[str, object] = {
        **workload.arguments,
        **knob_fields(configuration),
        "output_dir": output_dir,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "max_steps": 1_000_000,
    }
    known = {field.name for field in fields(TrainingArguments)}
    is_together = configuration.world_size > 1
    if is_together and is_stream(workload) and "accelerator_config" not in values:
        # Otherwise the first rank fetches every batch and sends the others their share of it.
        values["accelerator_config"] = {"dispatch_batches": False}
    if configuration.local_sgd_steps > 1 and "average_tokens_across_devices" in known:
        # It would make the ranks meet in every step.
        values["average_tokens_across_devices"] = False
    if is_together and find_unused:
        # By itself a Trainer looks for them only without checkpointing.
        values.setdefault("ddp_find_unused_parameters", True)
    if current_device().type == "cpu" and (values.get("bf16") or is_together):
        # Without it, bf16 is refused where there is no accelerator, and ranks train each alone.
        values["use_cpu"] = True
    # Trials never evaluate, whatever the two names of that switch are called here.
    for name in ("eval_strategy", "evaluation_strategy"):
        if name in known:
            values[name] = "no"
            break
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (workload.arguments_class or TrainingArguments)(**values)


def supported_checkpointing(model: torch.nn.Module) -> Mapping[str, bool]:
    """Which of `every_n_layers` and `offload` the model's switch takes; empty without a switch."""
    switch = _switch(model, "enable")
    if switch is None:
        return {}
    parameters = inspect.signature(switch).parameters
    return {name: name in parameters for name in ("every_n_layers", "offload")}


def _switch(model: torch.nn.Module, verb: str) -> Callable[..., object] | None:
    for name in (f"activation_checkpointing_{verb}", f"gradient_checkpointing_{verb}"):
        switch = getattr(model, name, None)
        if callable(switch):
            found: Callable[..., object] = switch
            return found
    return None


def set_checkpointing(model: torch.nn.Module, checkpointing: Checkpointing) -> None:
    """Puts a checkpointing form in force, or switches checkpointing off explicitly.

    Raises:
        ValueError: The model does not support checkpointing.
        AttributeError: The model has no such switch.
    """
    with warnings.catch_warnings():
        # The old name warns on new versions, also where only the old one exists on the model.
        warnings.simplefilter("ignore")
        disable = _switch(model, "disable")
        if disable is not None:
            disable()
        if not checkpointing.is_on:
            return
        enable = _switch(model, "enable")
        if enable is None:
            raise AttributeError(f"{type(model).__name__} has no switch for checkpointing.")
        kwargs = checkpointing_kwargs(checkpointing)
        options = {
            name: kwargs.pop(name) for name in ("every_n_layers", "offload") if name in kwargs
        }
        name = (
            "activation_checkpointing_kwargs"
            if "activation_checkpointing_kwargs" in inspect.signature(enable).parameters
            else "gradient_checkpointing_kwargs"
        )
        enable(**{name: kwargs}, **options)
