"""Norms of micro-gradients against gradients that autograd works out for each micro-batch."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.cost.noise import estimate_noise_scale
from autotune.trial.gradients import _buckets, measure_gradients
from autotune.trial.protocol import Progress
from autotune.trial.stepper import Driver, Stepper, train_window
from autotune.workload.loaded import Batch, LoadedWorkload
from tests.autotune.trial import workloads
from tests.autotune.trial.gradients_by_hand import (
    DRIVERS,
    OddForBoth,
    by_hand,
    measure,
    nothing,
    odd_workload,
    stepper_of,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    pytest.mark.filterwarnings("ignore:.*torch.cpu.amp.autocast"),
]


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> LoadedWorkload:
    """48 rows of unlike length, whose loss is a mean over tokens."""
    place = tmp_path_factory.mktemp("causal")
    return workloads.loaded(workloads.causal_spec(place, 48), place)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> LoadedWorkload:
    """48 rows whose loss is a mean over rows."""
    place = tmp_path_factory.mktemp("classifier")
    return workloads.loaded(workloads.classifier_spec(place, 48), place)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("accumulation", [2, 4])
@pytest.mark.parametrize("kind", ["rows", "shifted_tokens"])
def test_norms_are_those_of_autograd_and_training_goes_on_as_ever(
    causal: LoadedWorkload,
    classifier: LoadedWorkload,
    tmp_path: Path,
    driver: Driver,
    accumulation: int,
    kind: str,
) -> None:
    workload = classifier if kind == "rows" else causal
    assert workload.loss_items == kind
    options: dict[str, Any] = {"accumulation": accumulation, "driver": driver}
    read = stepper_of(workload, tmp_path, **options)
    plain = stepper_of(workload, tmp_path, **options)
    found = measure(read, num_windows=7)
    assert (found.num_micro_batches, found.rows_per_micro_batch) == (accumulation, 2)
    assert (found.num_skipped, len(found.windows)) == (0, 7)
    for step, window in enumerate(found.windows):
        batches = plain.next_window()
        expected = by_hand(plain, batches)
        train_window(plain, batches)
        assert window.step == step
        assert window.micro_squared_norms == pytest.approx(expected.micro, rel=1e-3)
        assert window.mean_squared_norm == pytest.approx(expected.whole, rel=1e-3)
        assert window.loss == pytest.approx(expected.loss, rel=1e-4)
        if step < 5:
            assert window.preconditioned_micro_squared_norms is None
            assert window.preconditioned_mean_squared_norm is None
        else:
            assert window.preconditioned_micro_squared_norms == pytest.approx(
                expected.preconditioned_micro, rel=5e-3
            )
            assert window.preconditioned_mean_squared_norm == pytest.approx(
                expected.preconditioned_whole, rel=5e-3
            )
    for own, other in zip(
        read.workload.model.parameters(), plain.workload.model.parameters(), strict=True
    ):
        torch.testing.assert_close(own, other, rtol=0, atol=2e-5)
    assert all(p.grad is None for p in read.model.parameters())


def test_the_noise_scale_of_frozen_weights_is_that_of_all_rows(
    classifier: LoadedWorkload, tmp_path: Path
) -> None:
    still = replace(classifier, arguments={**classifier.arguments, "learning_rate": 0.0})
    stepper = stepper_of(still, tmp_path, accumulation=4, driver="accelerate")
    found = measure(stepper, num_windows=40)
    rows = still.typical_rows(48)
    gradients = []
    for row in rows:
        stepper.model.zero_grad()
        loss: torch.Tensor = stepper.workload.model(**stepper.collate([row])).loss
        loss.backward()
        parts = [p.grad.flatten() for p in stepper.model.parameters() if p.grad is not None]
        gradients.append(torch.cat(parts).double())
    every = torch.stack(gradients)
    mean = every.mean(dim=0)
    truth = float(((every - mean) ** 2).sum(dim=1).mean() / (mean**2).sum())
    estimate = estimate_noise_scale(found, preconditioned=False)
    assert estimate.value == pytest.approx(truth, rel=0.3)
    assert estimate.lower <= truth <= estimate.upper


def test_steps_are_counted_and_told(causal: LoadedWorkload, tmp_path: Path) -> None:
    told: list[Progress] = []
    stepper = stepper_of(causal, tmp_path)
    found = measure_gradients(stepper, 2, report=told.append, num_steps_before=10)
    assert found is not None
    assert [window.step for window in found.windows] == [15, 16]
    assert all(window.preconditioned_mean_squared_norm for window in found.windows)
    assert [(p.stage, p.step, p.num_steps) for p in told] == [
        ("gradients", step, 7) for step in range(7)
    ]


def test_a_single_micro_batch_has_no_pair(causal: LoadedWorkload, tmp_path: Path) -> None:
    stepper = stepper_of(causal, tmp_path, accumulation=1)
    before = copy.deepcopy(stepper.workload.model.state_dict())
    assert measure_gradients(stepper, 2, report=nothing) is None
    for name, value in stepper.workload.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_window_that_is_cut_short_is_left_out(tmp_path: Path) -> None:
    workload = workloads.loaded(workloads.causal_spec(tmp_path, 7), tmp_path)
    found = measure(stepper_of(workload, tmp_path, accumulation=4), 3)
    assert (len(found.windows), found.num_skipped) == (0, 3)


@pytest.mark.parametrize("driver", DRIVERS)
def test_what_does_not_train_does_not_count(tmp_path: Path, driver: Driver) -> None:
    options: dict[str, Any] = {"driver": driver, "accumulation": 2, "micro": 4}
    stepper = stepper_of(odd_workload(arguments={"optim": "sgd"}), tmp_path, **options)
    found = measure(stepper, 6)
    model = OddForBoth()
    window = stepper_of(odd_workload(), tmp_path, **options).next_window()
    gradients = []
    for batch in window:
        model.zero_grad()
        model(**batch)["loss"].backward()
        trained = [p.grad for p in model.layer.parameters() if p.grad is not None]
        gradients.append(torch.cat([gradient.flatten() for gradient in trained]))
    assert found.windows[0].micro_squared_norms == pytest.approx(
        [float((g**2).sum()) for g in gradients], rel=1e-4
    )
    mean = torch.stack(gradients).mean(dim=0)
    assert found.windows[0].mean_squared_norm == pytest.approx(float((mean**2).sum()), rel=1e-4)
    # SGD keeps no second moments, however many steps it has made.
    assert {window.preconditioned_mean_squared_norm for window in found.windows} == {None}


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_gradient_that_is_not_finite_costs_its_step_alone(tmp_path: Path, driver: Driver) -> None:
    workload = odd_workload(wrong_call=5)
    stepper = stepper_of(workload, tmp_path, driver=driver, micro=4)
    found = measure(stepper, 4)
    assert [window.step for window in found.windows] == [0, 1, 3]
    assert found.num_skipped == 1
    assert all(p.isfinite().all() for p in stepper.workload.model.parameters())
    json.dumps([window.mean_squared_norm for window in found.windows], allow_nan=False)


def scaled(stepper: Stepper, init_scale: float) -> torch.amp.GradScaler:
    """Puts a real loss scaler in force, as mixed precision with fp16 does on a device."""
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=1000)
    optimizer: Any = stepper.optimizer
    stepper.accelerator.scaler = scaler
    # The wrapper is made again in its place, since the schedule holds on to it.
    optimizer.__init__(optimizer.optimizer, device_placement=False, scaler=scaler)
    return scaler


def test_loss_scaling_is_taken_off_again(tmp_path: Path) -> None:
    workload = odd_workload(arguments={"optim": "adamw_torch"})
    options: dict[str, Any] = {"driver": "accelerate", "micro": 4}
    expected = measure(stepper_of(workload, tmp_path, **options), 7)
    stepper = stepper_of(workload, tmp_path, **options)
    scaler = scaled(stepper, 2.0**10)
    found = measure(stepper, 7)
    assert scaler.get_scale() == 2.0**10
    for window, other in zip(found.windows, expected.windows, strict=True):
        assert window.micro_squared_norms == pytest.approx(other.micro_squared_norms, rel=1e-4)
        assert window.mean_squared_norm == pytest.approx(other.mean_squared_norm, rel=1e-4)
    assert found.windows[-1].preconditioned_mean_squared_norm == pytest.approx(
        expected.windows[-1].preconditioned_mean_squared_norm, rel=1e-3
    )


def test_a_step_that_the_scaler_skips_is_left_out(tmp_path: Path) -> None:
    workload = odd_workload(wrong_call=3)
    stepper = stepper_of(workload, tmp_path, driver="accelerate", micro=4)
    scaler = scaled(stepper, 2.0**10)
    found = measure(stepper, 4)
    assert [window.step for window in found.windows] == [0, 2, 3]
    assert found.num_skipped == 1
    assert scaler.get_scale() == 2.0**9
    assert all(p.isfinite().all() for p in stepper.workload.model.parameters())


def test_low_precision_weights_are_added_up_in_fp32(tmp_path: Path) -> None:
    workload = odd_workload()
    workload.model.bfloat16()

    def collate(rows: Sequence[Mapping[str, Any]]) -> Batch:
        return {
            "x": torch.stack([row["x"] for row in rows]).bfloat16(),
            "labels": torch.stack([row["labels"] for row in rows]),
        }

    workload = replace(workload, data_collator=collate)
    stepper = stepper_of(workload, tmp_path, driver="accelerate", micro=2, accumulation=4)
    found = measure(stepper, 2)
    exact = measure(
        stepper_of(odd_workload(), tmp_path, driver="accelerate", micro=2, accumulation=4), 2
    )
    assert found.windows[0].micro_squared_norms == pytest.approx(
        exact.windows[0].micro_squared_norms, rel=0.05
    )
    assert {p.dtype for p in stepper.workload.model.parameters()} == {torch.bfloat16}


def test_buckets_hold_everything_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.trial.gradients.BUCKET_ELEMENTS", 5)
    tensors = [torch.zeros(n) for n in (2, 3, 1, 9, 2, 2)]
    assert [[t.numel() for t in bucket] for bucket in _buckets(tensors)] == [
        [2, 3],
        [1],
        [9],
        [2, 2],
    ]
