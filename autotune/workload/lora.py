"""Low-rank adapters through peft, where it is installed."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from autotune.errors import UsageError
from autotune.workload.spec import Lora

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

USUAL_ALPHA = 8
"""What peft scales with where nobody says otherwise."""


def check_installed() -> None:
    """Raises where peft is missing, before anything is loaded.

    Raises:
        UsageError: peft is not installed.
    """
    if importlib.util.find_spec("peft") is None:
        raise UsageError("LoRA needs the package peft, which is not installed.", "pip install peft")


def add_adapters(model: PreTrainedModel, lora: Lora, peft_task: str | None) -> torch.nn.Module:
    """The model with adapters to train and everything else frozen, except a new head.

    Raises:
        UsageError: The layers to adapt are not in the model, or peft knows none for it.
    """
    import peft

    config = peft.LoraConfig(
        r=lora.rank,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules) if lora.target_modules else None,
        task_type=peft_task,
        lora_alpha=lora.alpha or USUAL_ALPHA,
    )
    try:
        adapted: torch.nn.Module = peft.get_peft_model(model, config)
    except ValueError as error:
        named = ", ".join(lora.target_modules or ())
        raise UsageError(
            f"The model has no layers called {named}."
            if named
            else f"peft has no usual layers to adapt in a {type(model).__name__}.",
            f"Name some of its linear layers as targets: {', '.join(_linear_names(model))}.",
        ) from error
    return adapted.train()


def _linear_names(model: PreTrainedModel) -> list[str]:
    import torch
    from transformers.pytorch_utils import Conv1D

    return sorted(
        {
            name.rsplit(".", 1)[-1]
            for name, module in model.named_modules()
            if isinstance(module, (torch.nn.Linear, Conv1D))
        }
    )
