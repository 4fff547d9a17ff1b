"""Norms of micro-gradients against gradients that autograd works out for each micro-batch."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autotune.configuration import Configuration
from autotune.cost.noise import estimate_noise_scale
from autotune.outcome import GradientNorms
from autotune.trial.gradients import _buckets, measure_gradients
from autotune.trial.protocol import Progress
from autotune.trial.stepper import (
    Driver,
    Stepper,
    TrainerStepper,
    make_stepper,
    train_window,
)
from autotune.workload.loaded import Batch, LoadedWorkload
from tests.autotune.export.jobs import quiet
from tests.autotune.trial import workloads

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    pytest.mark.filterwarnings("ignore:.*torch.cpu.amp.autocast"),
]

ROOT = Path(__file__).parents[3]
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


class Odd(nn.Module):
    """Frozen, unused and shared weights; one call may go wrong."""

    def __init__(self, *, wrong_call: int | None = None, has_unused: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.frozen = nn.Linear(6, 6).requires_grad_(requires_grad=False)
        self.layer = nn.Linear(6, 6)
        self.again = self.layer
        if has_unused:
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
    has_unused: bool = True,
    arguments: Mapping[str, object] | None = None,
) -> LoadedWorkload:
    generator = torch.Generator().manual_seed(1)
    rows = [
        {"x": torch.randn(6, generator=generator), "labels": torch.tensor(i % 6)} for i in range(32)
    ]
    return workloads.around(
        OddForBoth(wrong_call=wrong_call, has_unused=has_unused),
        rows,
        arguments={"learning_rate": 1e-2, "max_grad_norm": 1e9, **(arguments or {})},
    )


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


TWO_RANKS = """
import copy, json
from dataclasses import replace
from pathlib import Path
import torch
import torch.distributed as dist
from autotune.trial.gradients import measure_gradients
from autotune.configuration import Configuration
from autotune.trial.stepper import make_stepper, train_window
from tests.autotune.trial.test_gradients import odd_workload

torch.set_num_threads(1)
found = {}
for driver in ("trainer", "accelerate"):
    # A plain loop refuses weights that stay unused, a Trainer may be told to look for them.
    workload = odd_workload(has_unused=driver == "trainer", arguments={
        "use_cpu": True, "ddp_backend": "gloo", "ddp_find_unused_parameters": True,
    })

    def stepper(micro=2, accumulation=2, wrong_call=None):
        model = copy.deepcopy(workload.model)
        model._wrong_call = wrong_call
        return make_stepper(
            replace(workload, model=model),
            Configuration(micro_batch_size=micro, accumulation_steps=accumulation, world_size=2),
            driver=driver, output_dir="output", repair_loss=True,
        )

    read, plain = stepper(), stepper()
    assert read.accelerator.num_processes == 2, read.accelerator.num_processes
    calls = []
    reduce = dist.all_reduce
    def counted(tensor, *args, **kwargs):
        calls.append(tensor.numel())
        return reduce(tensor, *args, **kwargs)
    dist.all_reduce = counted
    norms = measure_gradients(read, 7, report=lambda progress: None, num_warmup_steps=0)
    dist.all_reduce = reduce

    expected = []
    for _ in range(7):
        window = plain.next_window()
        own = []
        for batch in window:
            reference = copy.deepcopy(plain.workload.model)
            reference.zero_grad()
            reference(**batch)["loss"].backward()
            own.append(torch.cat([p.grad.flatten() for p in reference.layer.parameters()]))
        everyone = [torch.zeros(2, own[0].numel()) for _ in range(2)]
        dist.all_gather(everyone, torch.stack(own))
        gradients = torch.cat(everyone)
        mean = gradients.mean(dim=0)
        expected.append([(gradients ** 2).sum(dim=1).tolist(), float((mean ** 2).sum())])
        train_window(plain, window)
    differences = [
        float((a - b).abs().max())
        for a, b in zip(read.workload.model.parameters(), plain.workload.model.parameters())
    ]

    # One rank alone goes wrong: both leave the step out.
    wrong = stepper(wrong_call=3 if dist.get_rank() == 1 else None)
    skipped = measure_gradients(wrong, 3, report=lambda progress: None, num_warmup_steps=0)
    # With one micro-batch a rank there is a pair all the same.
    single = measure_gradients(
        stepper(micro=4, accumulation=1), 2, report=lambda progress: None, num_warmup_steps=0)
    found[driver] = {
        "micro": [w.micro_squared_norms for w in norms.windows],
        "whole": [w.mean_squared_norm for w in norms.windows],
        "preconditioned": [w.preconditioned_mean_squared_norm for w in norms.windows],
        "losses": [w.loss for w in norms.windows],
        "num_micro_batches": norms.num_micro_batches,
        "expected": expected,
        "difference": max(differences),
        "num_all_reduces": len(calls),
        "skipped": [skipped.num_skipped, [w.step for w in skipped.windows]],
        "single": [single.num_micro_batches, single.rows_per_micro_batch, len(single.windows)],
    }
Path(f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
"""


def test_two_ranks_read_the_gradients_of_both(tmp_path: Path) -> None:
    path = tmp_path / "ranks.py"
    path.write_text(textwrap.dedent(TWO_RANKS))
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(path)),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    for driver in DRIVERS:
        found = first[driver]
        assert found["micro"] == second[driver]["micro"]
        assert found["whole"] == second[driver]["whole"]
        assert found["losses"] == second[driver]["losses"]
        assert found["num_micro_batches"] == 4
        for micro, whole, (micro_by_hand, whole_by_hand) in zip(
            found["micro"], found["whole"], found["expected"], strict=True
        ):
            assert micro == pytest.approx(micro_by_hand, rel=1e-3)
            assert whole == pytest.approx(whole_by_hand, rel=1e-3)
            assert len({round(norm, 9) for norm in micro}) == 4
        assert found["preconditioned"][:5] == [None] * 5
        assert all(norm > 0 for norm in found["preconditioned"][5:])
        assert found["difference"] <= 1e-5
        assert found["num_all_reduces"] == 7
        assert found["skipped"] == [1, [0, 2]]
        assert found["single"] == [2, 4, 2]
