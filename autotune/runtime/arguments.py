"""What a caller may give for local SGD, the same for a Trainer and for a loop."""

from __future__ import annotations

import math
import numbers
import operator
from contextlib import suppress

from torch.nn import Module

from autotune.errors import UsageError


def whole(name: str, value: object, remedy: str) -> int:
    """A number of steps; numpy's and torch's whole numbers are ones too.

    Raises:
        UsageError: It is no whole number.
    """
    if not isinstance(value, bool):
        with suppress(TypeError):
            return operator.index(value)  # type: ignore[arg-type]
    raise UsageError(f"{name} is a whole number, not {_shown(value)}.", remedy)


def positive(name: str, value: object, remedy: str) -> float:
    """A number above 0.

    Raises:
        UsageError: It is none, or not finite.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UsageError(f"{name} is a number, not {_shown(value)}.", remedy)
    number = float(value)
    if not 0 < number < math.inf:
        raise UsageError(f"{name} is a positive number, not {number}.", remedy)
    return number


def switch(name: str, value: object) -> bool:
    """A choice between two.

    Raises:
        UsageError: It is neither True nor False.
    """
    if not isinstance(value, bool):
        raise UsageError(f"{name} is True or False, not {_shown(value)}.", "Give one of the two.")
    return value


def check_accelerator(accelerator: object) -> None:
    """Refuses what is no Accelerator.

    Raises:
        UsageError: It is something else.
    """
    from accelerate import Accelerator

    if not isinstance(accelerator, Accelerator):
        raise UsageError(
            f"accelerator is an accelerate.Accelerator, not {_shown(accelerator)}.",
            "Give the one that prepared the model.",
        )


def check_model(model: object) -> None:
    """Refuses what is no model, or has nothing to learn.

    Raises:
        UsageError: It is something else, or all of it is frozen.
    """
    if not isinstance(model, Module):
        raise UsageError(
            f"model is a torch.nn.Module, not {_shown(model)}.",
            "Give the model that accelerator.prepare() returned.",
        )
    check_trainable(model)


def check_trainable(model: Module) -> None:
    """Refuses a model of which nothing would be trained.

    Raises:
        UsageError: Every parameter is frozen, or there is none.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(
            f"Every parameter of this {type(model).__name__} is frozen, so that ranks would learn "
            "nothing, and have nothing to average.",
            "Set requires_grad=True on what is to be trained, or add an adapter, before this.",
        )


def _shown(value: object) -> str:
    """A value as a message can hold it."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else f"{value[:37]}...")
    return f"a {type(value).__name__}"
