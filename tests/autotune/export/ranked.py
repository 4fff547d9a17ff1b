"""What is done on ranks that tests start: a hook that records a training, and odd behaviour."""

from __future__ import annotations

import functools
import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from pydantic import JsonValue


@functools.cache
def _light() -> None:
    """Leaves the imported libraries out of garbage collection, which follows every script."""
    import datasets  # noqa: F401
    import peft  # noqa: F401
    import transformers.trainer  # noqa: F401

    gc.freeze()


@contextmanager
def recording() -> Iterator[dict[str, JsonValue]]:
    """Records the tokens of every micro-batch, and what is summed over ranks after which step."""
    _light()
    inputs: list[JsonValue] = []
    numels: dict[str, int] = {}
    num_steps = 0
    prepare_model, step = Accelerator.prepare_model, AcceleratedOptimizer.step
    all_reduce = torch.distributed.all_reduce

    def keep(model: torch.nn.Module, args: object, kwargs: dict[str, torch.Tensor]) -> None:
        if model.training:
            inputs.append(kwargs["input_ids"].tolist())

    def preparing(self: Accelerator, model: torch.nn.Module, **options: bool) -> object:
        model.register_forward_pre_hook(keep, with_kwargs=True)
        return prepare_model(self, model, **options)

    def stepping(self: AcceleratedOptimizer, closure: object = None) -> None:
        nonlocal num_steps
        step(self, closure)
        num_steps += 1

    def reducing(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> object:
        name = str(num_steps)
        numels[name] = numels.get(name, 0) + tensor.numel()
        return all_reduce(tensor, *args, **kwargs)

    with (
        patch.object(Accelerator, "prepare_model", preparing),
        patch.object(AcceleratedOptimizer, "step", stepping),
        patch.object(torch.distributed, "all_reduce", reducing),
    ):
        yield {"inputs": inputs, "numels": numels}  # type: ignore[dict-item]


@contextmanager
def hanging() -> Iterator[None]:
    """Says which process it is, and never ends."""
    place = Path(os.environ["AUTOTUNE_TEST_PLACE"])
    (place / os.environ["RANK"]).write_text(str(os.getpid()))
    time.sleep(600)
    yield
