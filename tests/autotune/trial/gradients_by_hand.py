"""Gradients of micro-batches worked out by autograd alone, and jobs whose gradients are odd."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autotune.configuration import Configuration
from autotune.outcome import GradientNorms
from autotune.trial.gradients import measure_gradients
from autotune.trial.protocol import Progress
from autotune.trial.stepper import Driver, Stepper, TrainerStepper, make_stepper
from autotune.workload.loaded import Batch, LoadedWorkload
from tests.autotune.export.jobs import quiet
from tests.autotune.trial import workloads

DRIVERS: tuple[Driver, ...] = ("trainer", "accelerate")


def nothing(progress: Progress) -> None:
    """Tells nobody."""


def stepper_of(
    workload: LoadedWorkload,
    place: Path,
    *,
    micro: int = 2,
    accumulation: int = 2,
    driver: Driver = "trainer",
) -> Stepper:
    """A stepper with a model of its own."""
    with quiet():
        return make_stepper(
            replace(workload, model=copy.deepcopy(workload.model)),
            Configuration(micro_batch_size=micro, accumulation_steps=accumulation),
            driver=driver,
            output_dir=str(place / "output"),
            # The loss of a classifier is no sum over items, and accumulates right only then.
            repair_loss=workload.loss_items == "rows",
        )


def measure(stepper: Stepper, num_windows: int, num_warmup_steps: int = 0) -> GradientNorms:
    found = measure_gradients(
        stepper, num_windows, report=nothing, num_warmup_steps=num_warmup_steps
    )
    assert found is not None
    return found


@dataclass
class ByHand:
    """One window by autograd: squared norms, plain and divided as Adam does."""

    micro: list[float]
    whole: float
    preconditioned_micro: list[float]
    preconditioned_whole: float
    loss: float


def shares_of(stepper: Stepper, window: Sequence[Batch]) -> list[float]:
    """What the loss of each micro-batch is multiplied with in the loss of the window."""
    if stepper.workload.loss_items == "rows":
        return [1 / len(window)] * len(window)
    items = [int((batch["labels"][..., 1:] != -100).sum()) for batch in window]
    total = sum(items)
    if isinstance(stepper, TrainerStepper):
        # The Trainer has its own count of the items in a window.
        assert stepper._num_items is not None
        total = int(stepper._num_items)
    return [num / total for num in items]


def flat_norm(parts: Sequence[torch.Tensor], divisors: Sequence[torch.Tensor | float]) -> float:
    return sum(
        float(((part.double() / divisor) ** 2).sum())
        for part, divisor in zip(parts, divisors, strict=True)
    )


def by_hand(stepper: Stepper, window: list[Batch]) -> ByHand:
    """Gradients of the window at the present weights, which stay as they are."""
    model = stepper.workload.model
    parameters = [p for p in model.parameters() if p.requires_grad]
    shares = shares_of(stepper, window)
    gradients, loss = [], 0.0
    for batch, share in zip(window, shares, strict=True):
        output: Any = model(**batch)
        value = output["loss"] * share
        loss += value.item()
        found = torch.autograd.grad(value * len(window), parameters)
        gradients.append(list(found))
    mean = [torch.stack(parts).mean(dim=0) for parts in zip(*gradients, strict=True)]
    state = stepper.optimizer.state
    divisors: list[torch.Tensor | float] = [math.nan] * len(parameters)
    if all("exp_avg_sq" in state[p] for p in parameters):
        divisors = [
            (state[p]["exp_avg_sq"].double() / (1 - 0.999 ** float(state[p]["step"]))).sqrt() + 1e-8
            for p in parameters
        ]
    ones = [1.0] * len(parameters)
    return ByHand(
        micro=[flat_norm(parts, ones) for parts in gradients],
        whole=flat_norm(mean, ones),
        preconditioned_micro=[flat_norm(parts, divisors) for parts in gradients],
        preconditioned_whole=flat_norm(mean, divisors),
        loss=loss,
    )


class Odd(nn.Module):
    """Frozen, unused and shared weights; one call may go wrong."""

    def __init__(self, *, wrong_call: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.frozen = nn.Linear(6, 6).requires_grad_(requires_grad=False)
        self.layer = nn.Linear(6, 6)
        self.again = self.layer
        self.unused = nn.Linear(3, 3)
        self._wrong_call = wrong_call
        self._num_calls = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.again(torch.tanh(self.layer(self.frozen(x))))
        loss = nn.functional.cross_entropy(logits, labels)
        if self._num_calls == self._wrong_call:
            loss = loss * math.inf
        self._num_calls += 1
        return {"loss": loss}


class Output(dict[str, torch.Tensor]):
    """What the plain loop reads its loss from."""

    @property
    def loss(self) -> torch.Tensor:
        return self["loss"]


class OddForBoth(Odd):
    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return Output(super().forward(x, labels))


def odd_workload(
    *,
    wrong_call: int | None = None,
    arguments: Mapping[str, object] | None = None,
) -> LoadedWorkload:
    generator = torch.Generator().manual_seed(1)
    rows = [
        {"x": torch.randn(6, generator=generator), "labels": torch.tensor(i % 6)} for i in range(32)
    ]
    return workloads.around(
        OddForBoth(wrong_call=wrong_call),
        rows,
        arguments={"learning_rate": 1e-2, "max_grad_norm": 1e9, **(arguments or {})},
    )
