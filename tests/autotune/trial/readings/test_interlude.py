"""One evaluation step and one save after the steps of a memory pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.configuration import Configuration
from autotune.outcome import Interlude
from autotune.trial.readings import interlude
from autotune.trial.readings.interlude import try_interlude
from autotune.trial.stepper import Driver, Stepper, TrainerStepper, train_window
from autotune.workload.loaded import Evaluation, LoadedWorkload
from tests.autotune.trial.readings.meters import DRIVERS, small_decoder, stepper_of

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")

MIB = 2**20
LEVEL = 100 * MIB


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> LoadedWorkload:
    return small_decoder(tmp_path_factory.mktemp("causal"))


def trained(workload: LoadedWorkload, place: Path, driver: Driver = "trainer") -> Stepper:
    configuration = Configuration(micro_batch_size=2, accumulation_steps=1)
    stepper = stepper_of(workload, configuration, place, driver)
    train_window(stepper, stepper.next_window())
    return stepper


def tried(
    stepper: Stepper, place: Path, batch_size: int = 4, limit_bytes: int = 2**30
) -> Interlude:
    directory = place / "tried"
    directory.mkdir()
    return try_interlude(
        stepper,
        batch_size,
        limit_bytes=limit_bytes,
        level_bytes=LEVEL,
        others_bytes=0,
        directory=str(directory),
    )


def static_bytes(stepper: Stepper) -> int:
    """Weights, and twice as much of state."""
    return 3 * sum(p.numel() * p.element_size() for p in stepper.workload.model.parameters())


@pytest.mark.parametrize("driver", DRIVERS)
def test_evaluation_holds_weights_state_and_logits_and_both_are_written(
    driver: Driver, causal: LoadedWorkload, tmp_path: Path
) -> None:
    stepper = trained(causal, tmp_path, driver)
    found = tried(stepper, tmp_path)
    assert found.faults == ()
    assert found.is_saved
    assert found.evaluation_batch_size == 4
    longest = int(stepper.collate(causal.longest_rows(1))["input_ids"].shape[1])
    logits = (
        4 * longest * stepper.workload.model.get_parameter("transformer.wte.weight").shape[0] * 4
    )
    assert found.evaluation_bytes is not None
    inside = found.evaluation_bytes - LEVEL - static_bytes(stepper)
    assert logits <= inside < static_bytes(stepper) / 3, "there are no gradients"
    assert stepper.model.training
    written = {path.name for path in (tmp_path / "tried").rglob("*")}
    assert {"optimizer.pt", "model.safetensors"} <= written


def test_no_more_rows_are_evaluated_than_there_are(causal: LoadedWorkload, tmp_path: Path) -> None:
    assert tried(trained(causal, tmp_path), tmp_path, 1000).evaluation_batch_size == 21


def test_what_breaks_is_told_and_ends_nothing(
    causal: LoadedWorkload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(logits: object, labels: object) -> object:
        raise ValueError("no metrics today")

    evaluation = Evaluation(keeps_outputs=True, preprocess_logits=broken)
    stepper = trained(replace(causal, evaluation=evaluation), tmp_path)
    monkeypatch.setattr(interlude, "MOST_SAVED_BYTES", 10)
    found = tried(stepper, tmp_path)
    assert found.evaluation_bytes is None
    assert not found.is_saved
    assert found.faults[0] == (
        "an evaluation step of 4 rows did not run: ValueError: no metrics today"
    )
    assert found.faults[1].startswith("saving was not tried, since it would write ")


def test_evaluation_beyond_the_limit_is_told(causal: LoadedWorkload, tmp_path: Path) -> None:
    stepper = trained(causal, tmp_path)
    limit = LEVEL + static_bytes(stepper) + 100
    found = tried(stepper, tmp_path, limit_bytes=limit)
    assert found.evaluation_bytes is None
    assert "HostBudgetExceeded" in found.faults[0]


def test_outputs_are_kept_as_the_job_keeps_them(causal: LoadedWorkload, tmp_path: Path) -> None:
    seen: list[Any] = []

    def first(logits: Any, labels: Any) -> Any:
        seen.append(logits)
        return logits[:, :1]

    stepper = trained(
        replace(causal, evaluation=Evaluation(keeps_outputs=True, preprocess_logits=first)),
        tmp_path,
    )
    assert isinstance(stepper, TrainerStepper)
    assert tried(stepper, tmp_path).faults == ()
    (logits,) = seen
    assert isinstance(logits, torch.Tensor)
    assert logits.shape[0] == 4
