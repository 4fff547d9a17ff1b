"""Puts a configuration in force on a live Trainer, which has fixed some of it when it was made."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import torch

from autotune.configuration import Configuration
from autotune.errors import UsageError
from autotune.library.steps import differences, rescale
from autotune.runtime.callback import LocalSGDCallback, attached_to
from autotune.runtime.local_steps import is_first_rank
from autotune.runtime.plain import refuse_unless_plain
from autotune.runtime.telling import tell
from autotune.trial.training_arguments import knob_fields, set_checkpointing
from autotune.units import counted
from autotune.workload.live.arguments import configuration_of
from autotune.workload.live.job import base_trainer, is_checkpointing

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments


def apply(
    trainer: Trainer,
    configuration: Configuration,
    *,
    repair_loss: bool,
    baseline: Configuration | None = None,
    find_unused: bool = False,
) -> None:
    """Makes the next `train()` run under a configuration.

    Args:
        trainer: Changed in place; it must not train right now.
        configuration: What is to hold.
        repair_loss: Whether loss parity needs `model_accepts_loss_kwargs = False`.
        baseline: What the job had when it was tuned; another job is refused where it is known.
        find_unused: Whether ranks that exchange gradients must look for parameters without one.

    Raises:
        UsageError: The Trainer trains right now, has another number of ranks or another global
            batch size than the job that was tuned, its model has no switch for checkpointing, or
            its ranks cannot train by themselves.
    """
    if not isinstance(trainer, base_trainer()):
        raise UsageError(
            f"A {type(trainer).__name__} is no Trainer.", "Give apply() a transformers.Trainer."
        )
    arguments = trainer.args
    if getattr(trainer, "is_in_train", False):
        raise UsageError(
            "The Trainer is in the middle of train().", "Apply the recommendation before train()."
        )
    if arguments.world_size != configuration.world_size:
        raise UsageError(
            f"The recommendation is for {counted(configuration.world_size, 'rank')}, and this "
            f"Trainer has {arguments.world_size}.",
            "Start as many processes as were tuned, or tune again with these.",
        )
    if configuration.local_sgd_steps > 1:
        if configuration.world_size == 1:
            raise UsageError(
                "Local SGD needs several ranks, and this Trainer has one.",
                "Start as many processes as were tuned, or tune again with one.",
            )
        refuse_unless_plain(trainer.accelerator)
    averaging = attached_to(trainer)
    before = replace(
        configuration_of(
            arguments,
            is_checkpointing=is_checkpointing(trainer.model),
            world_size=arguments.world_size,
        ),
        local_sgd_steps=averaging.local_sgd_steps if averaging is not None else 1,
    )
    if baseline is not None and before.global_batch_size not in (
        baseline.global_batch_size,
        configuration.global_batch_size,
    ):
        raise UsageError(
            f"This Trainer trains on {before.global_batch_size} samples in an optimizer step, and "
            f"the job that was tuned on {baseline.global_batch_size}.",
            "Tune this Trainer, or give it the batch size and accumulation steps of that job.",
        )
    if repair_loss:
        trainer.model_accepts_loss_kwargs = False
    if find_unused and arguments.world_size > 1 and arguments.ddp_find_unused_parameters is None:
        # By itself a Trainer looks for them only without checkpointing.
        arguments.ddp_find_unused_parameters = True
    if before == configuration and not _is_reentrant(arguments):
        return
    try:
        set_checkpointing(trainer.model, configuration.checkpointing)
    except (AttributeError, ValueError) as error:
        raise UsageError(
            f"{type(trainer.model).__name__} cannot be told to use {configuration.checkpointing}: "
            f"{error}",
            "Take an alternative without checkpointing.",
        ) from error
    changes = [
        *set_knobs(arguments, configuration),
        *rescale(arguments, before.global_batch_size, configuration.global_batch_size),
        *differences(trainer, before, configuration),
    ]
    trainer._train_batch_size = arguments.train_batch_size
    # It was made with the accumulation steps, and the plugins, of the arguments as they were.
    trainer.create_accelerator_and_postprocess()
    _drop_second_count(arguments)
    if averaging is not None:
        averaging.detach()
        if averaging in trainer.callback_handler.callbacks:
            # It was added without being attached.
            trainer.remove_callback(averaging)
    if configuration.local_sgd_steps > 1:
        LocalSGDCallback(configuration.local_sgd_steps).attach(trainer)
    _tell(changes, is_first=is_first_rank(trainer))


def _is_reentrant(arguments: TrainingArguments) -> bool:
    """Whether ranks would checkpoint in the reentrant way, as no trial did.

    A layer that is used twice breaks the exchange of gradients under it, on several ranks alone.
    """
    if arguments.world_size == 1:
        return False
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        if getattr(arguments, name, False):
            options = getattr(arguments, f"{name}_kwargs", None) or {}
            return options.get("use_reentrant") is not False
    return False


def set_knobs(
    arguments: TrainingArguments, configuration: Configuration, but: Sequence[str] = ()
) -> list[str]:
    """Sets the fields of the knobs, but for some; returns what else had to change, in sentences."""
    changes = []
    values = knob_fields(configuration)
    options = next((value for name, value in values.items() if name.endswith("_kwargs")), None)
    known = {field.name for field in fields(arguments)}
    for name in {"activation_checkpointing", "gradient_checkpointing"} & known:
        # Where both names exist, the old one mirrors the new one.
        values |= {name: configuration.checkpointing.is_on, f"{name}_kwargs": options}
    for name in values.keys() - {*but}:
        setattr(arguments, name, values[name])
    if arguments.auto_find_batch_size:
        arguments.auto_find_batch_size = False
        changes.append(
            "auto_find_batch_size is switched off: it would halve the batch, and with it the "
            "global batch size, on its own"
        )
    _drop_second_count(arguments)
    return changes


def _tell(changes: Sequence[str], *, is_first: bool) -> None:
    """Warns of what had to change beside the knobs, all at once."""
    if changes:
        tell(f"{'; '.join(changes)}.", is_first=is_first)


def _drop_second_count(arguments: TrainingArguments) -> None:
    """Takes out the count that a Trainer leaves in the plugin's options, and later refuses."""
    accumulation = getattr(arguments.accelerator_config, "gradient_accumulation_kwargs", None)
    if isinstance(accumulation, dict):
        accumulation.pop("num_steps", None)


def remade(
    arguments: TrainingArguments | None,
    configuration: Configuration,
    *,
    precision: str,
    changes: Mapping[str, object],
) -> TrainingArguments:
    """New arguments with a configuration in force.

    Args:
        arguments: What to start from, left as it is; None starts from the defaults.
        configuration: What is to hold.
        precision: Of the job, where there are no arguments to start from.
        changes: Further fields.

    Raises:
        UsageError: There is no such field.
    """
    from transformers import TrainingArguments

    kind = TrainingArguments if arguments is None else type(arguments)
    known = {field.name for field in fields(kind)}
    unknown = sorted(set(changes) - known)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        raise UsageError(
            f"{kind.__name__} has no field {unknown[0]!r}.",
            f"Did you mean {near[0]!r}?" if near else "Leave it out.",
        )
    overridden = sorted({*knob_fields(configuration)} & {*changes})
    if overridden:
        told = [f"{', '.join(overridden)} is not the recommended one, as you asked"]
        _tell(told, is_first=arguments is None or arguments.process_index == 0)
    if arguments is None:
        values: dict[str, object] = {"output_dir": "trainer_output", **knob_fields(configuration)}
        if precision != "fp32":
            values[precision] = True
        has_ranks = configuration.world_size > 1
        if (precision != "fp32" or has_ranks) and not torch.accelerator.is_available():
            # Without it 16-bit training is refused there, and each rank trains alone.
            values["use_cpu"] = True
        return kind(**{**values, **changes})
    made = replace(
        arguments, accelerator_config=copy.deepcopy(arguments.accelerator_config), **changes
    )
    before = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    told = [
        *set_knobs(made, configuration, but=overridden),
        *rescale(made, before * arguments.world_size, configuration.global_batch_size),
    ]
    _tell(told, is_first=made.process_index == 0)
    return made
