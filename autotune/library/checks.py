"""What is of the wrong kind in a library call, before anything starts."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.display import DISPLAYS
from autotune.errors import UsageError
from autotune.goal import Budget, Goal
from autotune.request import SAMPLERS
from autotune.run_directory import checked_name, place

if TYPE_CHECKING:
    from transformers import Trainer


def path_of(name: str, value: object) -> Path:
    """An argument that names a place.

    Raises:
        UsageError: It is no path, an empty one, or in a home that is not known.
    """
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        raise UsageError(
            f"{name} is a {type(value).__name__}.", "Give a path, as text or as a pathlib.Path."
        ) from None
    try:
        return place(os.fsdecode(text))
    except UsageError as error:
        raise UsageError(f"{name}: {error.cause}", error.remedy) from None


def check(
    *,
    display: object,
    goal: object,
    budget: object,
    sampler: object,
    local_sgd: object,
    seed: object,
    storage: object,
    name: object,
    optimizers: object,
) -> None:
    """Says what is of the wrong kind before anything starts.

    Raises:
        UsageError: One of them is.
    """
    choices = (("display", display, DISPLAYS), ("sampler", sampler, SAMPLERS))
    for what, value, known in choices:
        if value not in known:
            raise UsageError(f"There is no {what} {value!r}.", f"Choose one of {', '.join(known)}.")
    if goal is not None and not isinstance(goal, Goal):
        raise UsageError(
            f"The goal is a {type(goal).__name__}.",
            "Give an autotune.Goal, such as Goal(global_batch_size=64).",
        )
    if budget is not None and not isinstance(budget, Budget):
        raise UsageError(
            f"The budget is a {type(budget).__name__}.",
            "Give an autotune.Budget, such as Budget(seconds=300.0).",
        )
    is_number = isinstance(local_sgd, int) and not isinstance(local_sgd, bool) and local_sgd > 0
    if local_sgd not in ("auto", "off") and not is_number:
        raise UsageError(
            f"local_sgd cannot be {local_sgd!r}.",
            "Give auto, off or a number of optimizer steps.",
        )
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise UsageError(f"The seed {seed!r} is none.", "Give a whole number from 0 to 2**32 - 1.")
    if not isinstance(optimizers, tuple | list) or len(optimizers) != 2:
        raise UsageError(
            f"optimizers is a {type(optimizers).__name__}, and no pair.",
            "Give optimizer and learning-rate schedule, such as (optimizer, None).",
        )
    texts = (("storage", storage, "an Optuna storage URL"), ("name", name, "the run's name"))
    for argument, value, meant in texts:
        if value is not None and not isinstance(value, str):
            kind = type(value).__name__
            raise UsageError(f"The {argument} is a {kind}.", f"Give {meant} as text.")
    if isinstance(name, str):
        checked_name(name)


def maker_of(given: object) -> Callable[[], Trainer]:
    """A function that makes a Trainer, as far as can be told without calling it.

    Raises:
        UsageError: It is something else, or needs arguments.
    """
    import torch

    if isinstance(given, torch.nn.Module):
        raise UsageError(
            f"tune() was given a model, a {type(given).__name__}.",
            "Give it the Trainer; or the model as model=…, with args=… and train_dataset=….",
        )
    if isinstance(given, type):
        raise UsageError(
            f"tune() was given the class {given.__name__}.",
            "Give it a Trainer that was made, or a function that makes one.",
        )
    if not callable(given):
        raise UsageError(
            f"tune() was given a {type(given).__name__}.",
            "Give it a transformers.Trainer, or a function that makes one.",
        )
    try:
        inspect.signature(given).bind()
    except TypeError as error:
        raise UsageError(
            f"The function that tune() was given needs arguments: {error}.",
            "Give a function without any, such as lambda: make_trainer(size=3).",
        ) from None
    except ValueError:
        pass  # Some built-in callables tell no signature.
    made: Callable[[], Trainer] = given
    return made
