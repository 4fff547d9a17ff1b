"""Steppers for the meter: one whose clock the test holds, and real ones of a small decoder."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from autotune.configuration import Configuration
from autotune.trial.stepper import Driver, Stepper, make_stepper
from autotune.workload.loaded import Batch, LoadedWorkload, Row
from tests.autotune.export.jobs import quiet
from tests.autotune.trial import workloads

DRIVERS: tuple[Driver, ...] = ("trainer", "accelerate")


class ByHand(Stepper):
    """Steps that take as long as the test says, on the test's own clock."""

    def __init__(self, step_times_s: Sequence[float], sizes: Sequence[int] = (4,)) -> None:
        rows = [{"x": float(i)} for i in range(max(sizes))]
        super().__init__(
            replace(
                workloads.around(nn.Linear(1, 1), rows),
                count_tokens=lambda batch: 10 * len(batch["x"]),
            ),
            Configuration(micro_batch_size=max(sizes), accumulation_steps=1),
        )
        self.device = torch.device("cpu")
        self.now_s = 100.0
        self.num_steps = 0
        self._step_times_s = step_times_s
        self._sizes = sizes

    def collate(self, rows: Sequence[Row]) -> Batch:
        return self.workload.data_collator(list(rows))

    def set_window(self, window: list[Batch]) -> None:
        pass

    def next_window(self) -> list[Batch]:
        size = self._sizes[self.num_steps % len(self._sizes)]
        return [self.collate(self.workload.typical_rows(size))]

    def loss(self, batch: Batch) -> torch.Tensor:
        return torch.tensor(float(self.num_steps))

    def micro_step(self, batch: Batch, *, is_last: bool) -> torch.Tensor:
        return self.loss(batch)

    def optimizer_step(self) -> None:
        self.now_s += self._step_times_s[self.num_steps % len(self._step_times_s)]
        self.num_steps += 1

    def _loader(self) -> Iterator[Batch]:
        raise NotImplementedError


def stepper_of(
    workload: LoadedWorkload, configuration: Configuration, place: Path, driver: Driver = "trainer"
) -> Stepper:
    with quiet():
        return make_stepper(
            replace(workload, model=copy.deepcopy(workload.model)),
            configuration,
            driver=driver,
            output_dir=str(place / "output"),
            repair_loss=False,
        )


def small_decoder(place: Path) -> LoadedWorkload:
    """21 rows for a decoder of two layers."""
    return workloads.loaded(workloads.causal_spec(place, 21, width=32), place)
