"""Trainers of a tiny model whose averagings, evaluations and files are watched, on real ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel, Trainer, TrainerCallback

from autotune import LocalSGDCallback
from autotune.runtime.averaging import ParameterAverage
from autotune.runtime.plain import find_ddp
from tests.autotune.runtime.ranks import Facts, difference, flat, spread
from tests.testing import live

HERE = Path.cwd()
AVERAGED: list[int | None] = []
"""The steps that averagings of the running check came after."""


def note_averagings() -> None:
    """From now on every averaging is noted in `AVERAGED`."""
    original = ParameterAverage.average

    def average(self: ParameterAverage, *, num_steps: int | None = None) -> None:
        original(self, num_steps=num_steps)
        AVERAGED.append(num_steps)

    ParameterAverage.average = average  # type: ignore[method-assign]


class Recorded:
    """A collator that keeps what it made."""

    def __init__(self) -> None:
        self.batches: list[dict[str, torch.Tensor]] = []

    def __call__(self, rows: Sequence[Mapping[str, list[int]]]) -> dict[str, torch.Tensor]:
        self.batches.append(live.pad(rows))
        return self.batches[-1]


class Watch(TrainerCallback):  # type: ignore[misc]
    """Notes how far apart the ranks are at the moments that matter."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.at_step_begin: list[bool] = []
        self.at_evaluate: dict[int, float] = {}
        self.at_save: dict[int, float] = {}
        self.saved_error: dict[int, float] = {}

    def on_step_begin(self, args, state, control, model=None, **kwargs):  # type: ignore[no-untyped-def]
        self.at_step_begin.append(spread([*model.parameters()]) == 0)

    def on_evaluate(self, args, state, control, model=None, **kwargs):  # type: ignore[no-untyped-def]
        self.at_evaluate[state.global_step] = spread([*model.parameters()])

    def on_save(self, args, state, control, model=None, **kwargs):  # type: ignore[no-untyped-def]
        self.at_save[state.global_step] = spread([*model.parameters()])
        if args.process_index == 0:
            path = self.directory / "out" / f"checkpoint-{state.global_step}"
            saved = load_file(path / "model.safetensors")
            now = dict(model.named_parameters())
            self.saved_error[state.global_step] = max(
                difference(tensor, now[name]) for name, tensor in saved.items() if name in now
            )


def gpt2() -> PreTrainedModel:
    model = live.gpt2()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


@dataclass(kw_only=True, eq=False)
class Fit:
    """A Trainer and what is watched of it."""

    name: str
    trainer: Trainer
    watch: Watch
    collator: Recorded
    averaged: list[int | None] = field(default_factory=list)

    def train(self, **options: Any) -> Fit:
        AVERAGED.clear()
        self.trainer.train(**options)
        self.averaged = [*AVERAGED]
        return self

    @property
    def weights(self) -> torch.Tensor:
        return flat([*self.trainer.model.parameters()])

    @property
    def spread(self) -> float:
        return spread([*self.trainer.model.parameters()])

    @property
    def exchanges_again(self) -> bool:
        return bool(find_ddp(self.trainer.model_wrapped).require_backward_grad_sync)

    def facts(self) -> Facts:
        return {
            "averaged": self.averaged,
            "spread": self.spread,
            "exchanges_again": self.exchanges_again,
            "equal_at_step_begin": [*self.watch.at_step_begin],
            "global_step": self.trainer.state.global_step,
        }


def made(
    name: str,
    callback: LocalSGDCallback | None = None,
    *,
    model: torch.nn.Module | None = None,
    momentum: float = 0.9,
    train_dataset: live.Tokens | None = None,
    **changes: Any,
) -> Fit:
    """A Trainer of a tiny model with plain SGD, without clipping and dropout."""
    for variable in [*os.environ]:
        # TrainingArguments leave theirs for whatever comes next in this process.
        if variable.startswith("ACCELERATE_"):
            del os.environ[variable]
    directory = HERE / name
    model = model or gpt2()
    collator = Recorded()
    values: dict[str, Any] = {
        "gradient_accumulation_steps": 1,
        "max_steps": 8,
        "max_grad_norm": 0.0,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "average_tokens_across_devices": False,
        "ddp_backend": "gloo",
        "ddp_timeout": 60,
        "logging_strategy": "no",
        **changes,
    }
    trainer = Trainer(
        model=model,
        args=live.arguments(directory, **values),
        train_dataset=train_dataset or live.Tokens(),
        eval_dataset=live.Tokens(4),
        data_collator=collator,
        optimizers=(
            torch.optim.SGD(
                [p for p in model.parameters() if p.requires_grad],
                lr=values["learning_rate"],
                momentum=momentum,
            ),
            None,
        ),
    )
    # The loss is the mean of its micro-batch, as it is for whoever trains by hand.
    trainer.model_accepts_loss_kwargs = False
    if callback is not None:
        callback.attach(trainer)
    watch = Watch(directory)
    trainer.add_callback(watch)
    return Fit(name=name, trainer=trainer, watch=watch, collator=collator)
