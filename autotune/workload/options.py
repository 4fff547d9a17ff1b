"""The TrainingArguments fields that belong to a workload, checked against this installation."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING

from autotune.errors import UsageError
from autotune.workload.facts import Hyperparameters
from autotune.workload.spec import WorkloadSpec

if TYPE_CHECKING:
    from pydantic import JsonValue
    from transformers import TrainingArguments

_PACKAGES = {
    "galore": "galore_torch",
    "lomo": "lomo_optim",
    "grokadamw": "grokadamw",
    "torch_4bit": "torchao",
    "torch_8bit": "torchao",
    "schedule_free": "schedulefree",
    "apollo": "apollo_torch",
    "stable_adamw": "optimi",
    "8bit": "bitsandbytes",
    "paged": "bitsandbytes",
    "bnb": "bitsandbytes",
    "ademamix": "bitsandbytes",
    "lion": "bitsandbytes",
    "xla": "torch_xla",
    "npu": "torch_npu",
    "apex": "apex",
    "anyprecision": "torchdistx",
}
"""Part of an optimizer's name → the package that it needs; the first that matches counts."""


def training_options(
    spec: WorkloadSpec, *, trains_here: bool = True
) -> tuple[str, dict[str, JsonValue]]:
    """The optimizer's name, and the fields that differ from their defaults.

    Args:
        spec: What is trained.
        trains_here: Whether this machine trains; a device that is not here may do more.

    Raises:
        UsageError: The precision or the optimizer is not available.
    """
    from transformers import TrainingArguments

    arguments: dict[str, JsonValue] = {"seed": spec.seed}
    if spec.precision != "fp32":
        if spec.precision == "fp16" and trains_here and not has_device():
            raise no_fp16()
        arguments[spec.precision] = True
    default = TrainingArguments.__dataclass_fields__["optim"].default
    optim = spec.optim or str(getattr(default, "value", default))
    if spec.optim is not None:
        _check_optim(spec.optim)
        arguments["optim"] = spec.optim
    if spec.learning_rate is not None:
        arguments["learning_rate"] = spec.learning_rate
    return optim, arguments


def no_fp16() -> UsageError:
    """What is said of fp16 where no device trains."""
    return UsageError(
        "fp16 needs a device: on a CPU there is no mixed precision with it.",
        "Use --precision bf16 or fp32.",
    )


def hyperparameters_of(
    arguments: Mapping[str, object], kind: type[TrainingArguments] | None = None
) -> Hyperparameters:
    """The settings that go with the size of a batch.

    Args:
        arguments: Fields of a job that differ from their defaults.
        kind: The class of its arguments; None is TrainingArguments itself.
    """
    from transformers import TrainingArguments

    fields = (kind or TrainingArguments).__dataclass_fields__

    def value(name: str) -> float:
        found = arguments.get(name, fields[name].default if name in fields else None)
        return float(found) if isinstance(found, int | float) else 0.0

    warmup = value("warmup_steps")
    # Below 1 it is a part of the whole training, and stays that; an older field says the same.
    is_part = 0 < warmup < 1 or value("warmup_ratio") > 0
    return Hyperparameters(
        learning_rate=value("learning_rate"),
        warmup_steps=0 if is_part else int(warmup),
        adam_beta2=value("adam_beta2"),
        weight_decay=value("weight_decay"),
        max_grad_norm=value("max_grad_norm"),
    )


def _check_optim(name: str) -> None:
    from transformers.training_args import OptimizerNames

    names = [entry.value for entry in OptimizerNames]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=4, cutoff=0.4)
        raise UsageError(
            f"There is no optimizer {name!r} in the installed transformers.",
            f"Near ones for --optim: {', '.join(near or names[:6])}.",
        )
    package = next((value for part, value in _PACKAGES.items() if part in name), None)
    if package is not None and importlib.util.find_spec(package) is None:
        raise UsageError(
            f"The optimizer {name!r} needs the package {package}, which is not installed.",
            "Install it, or choose another one with --optim.",
        )


def has_device() -> bool:
    """Whether torch sees an accelerator; asks without creating a context on it where possible."""
    import torch

    return (
        torch.cuda.device_count() > 0
        or torch.xpu.device_count() > 0
        or torch.backends.mps.is_available()
    )
