"""Both steppers against a real training run on the same rows."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from autotune.configuration import Checkpointing, Configuration
from autotune.trial.stepper import Driver, Stepper, decay_groups, make_stepper, train_window
from autotune.trial.training_arguments import knob_fields
from autotune.workload.loaded import LoadedWorkload, num_rows
from tests.autotune.export import jobs
from tests.autotune.export.jobs import quiet
from tests.autotune.trial import workloads
from tests.autotune.trial.models import needs_every_n
from tests.autotune.trial.workloads import Tokens, flat, rows_of, windows

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    pytest.mark.filterwarnings("ignore:.*torch.cpu.amp.autocast"),
]

DRIVERS: tuple[Driver, ...] = ("trainer", "accelerate")
EVERY_LAYER = Checkpointing(every_n_layers=1)


def configured(
    micro: int, accumulation: int, checkpointing: Checkpointing | None = None
) -> Configuration:
    return Configuration(
        micro_batch_size=micro,
        accumulation_steps=accumulation,
        checkpointing=checkpointing or Checkpointing(),
    )


def stepper_of(
    workload: LoadedWorkload,
    configuration: Configuration,
    place: Path,
    *,
    driver: Driver = "trainer",
    repair_loss: bool = False,
) -> Stepper:
    """A stepper with a model of its own."""
    with quiet():
        return make_stepper(
            replace(workload, model=copy.deepcopy(workload.model)),
            configuration,
            driver=driver,
            output_dir=str(place / "output"),
            repair_loss=repair_loss,
        )


def losses(stepper: Stepper, num: int) -> list[float]:
    return [float(train_window(stepper, stepper.next_window())) for _ in range(num)]


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> LoadedWorkload:
    """21 rows: two windows of 8 and a short one."""
    place = tmp_path_factory.mktemp("causal")
    return workloads.loaded(workloads.causal_spec(place, 21), place)


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> LoadedWorkload:
    place = tmp_path_factory.mktemp("seven")
    return workloads.loaded(workloads.causal_spec(place, 7), place)


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> LoadedWorkload:
    """24 rows: three windows of 8."""
    place = tmp_path_factory.mktemp("even")
    return workloads.loaded(workloads.causal_spec(place, 24), place)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> LoadedWorkload:
    """24 rows whose loss is a mean over rows, for both loops alike."""
    place = tmp_path_factory.mktemp("classifier")
    return workloads.loaded(workloads.classifier_spec(place, 24), place)


@dataclass
class RealRun:
    """What a Trainer of nobody's making did."""

    batches: list[list[Tokens]]
    """Rows of every micro-batch, as the model got them."""
    losses: list[float]
    """As logged after each optimizer step."""


class _StopAt(TrainerCallback):  # type: ignore[misc]
    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps

    def on_step_end(self, args: object, state: Any, control: Any, **kwargs: object) -> None:
        control.should_training_stop = state.global_step >= self._num_steps


def train(
    workload: LoadedWorkload, configuration: Configuration, place: Path, num_steps: int
) -> RealRun:
    """Trains with a plain Trainer, as the user of a configuration would."""
    model = copy.deepcopy(workload.model)
    batches: list[list[Tokens]] = []

    def keep(module: nn.Module, args: object, inputs: dict[str, object]) -> None:
        batches.append(rows_of(inputs))

    with quiet():
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=str(place / "real"),
                report_to=[],
                save_strategy="no",
                logging_steps=1,
                disable_tqdm=True,
                max_steps=1_000_000,
                **workload.arguments,
                **knob_fields(configuration),
            ),
            train_dataset=workload.train_dataset,
            data_collator=workload.data_collator,
            processing_class=workload.processing_class,
            callbacks=[_StopAt(num_steps)],
        )
        trainer.model.register_forward_pre_hook(keep, with_kwargs=True)
        trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return RealRun(batches=batches, losses=logged)


@pytest.mark.parametrize("driver", DRIVERS)
def test_windows_hold_the_same_rows_whatever_the_split(
    causal: LoadedWorkload, tmp_path: Path, driver: Driver
) -> None:
    found = {}
    for micro, accumulation in ((1, 8), (2, 4), (8, 1)):
        stepper = stepper_of(causal, configured(micro, accumulation), tmp_path, driver=driver)
        split = windows(stepper, 4)
        assert [[len(batch) for batch in window] for window in split] == [
            [micro] * accumulation
        ] * 4
        found[micro] = [flat(window) for window in split]
    assert found[1] == found[2] == found[8]
    typical = rows_of(causal.data_collator(causal.typical_rows(21 + 16)))
    assert found[8][0] + found[8][1] == typical[:16]
    # The five rows that are left over are passed over; the next epoch has an order of its own.
    assert found[8][2] + found[8][3] == typical[21:]
    assert found[8][2] != found[8][0]


@pytest.mark.parametrize(("micro", "accumulation"), [(1, 8), (2, 4), (8, 1)])
def test_the_trainer_itself_trains_on_these_rows_with_these_losses(
    even: LoadedWorkload, tmp_path: Path, micro: int, accumulation: int
) -> None:
    configuration = configured(micro, accumulation)
    real = train(even, configuration, tmp_path, num_steps=5)
    found = windows(stepper_of(even, configuration, tmp_path), 5)
    assert real.batches == [batch for window in found for batch in window]
    stepper = stepper_of(even, configuration, tmp_path)
    assert losses(stepper, 5) == pytest.approx(real.losses, abs=6e-5)
    assert abs(real.losses[0] - real.losses[1]) > 1e-3, "a step has to change something"


@pytest.mark.parametrize("every_n_layers", [1, pytest.param(2, marks=needs_every_n)])
def test_losses_are_the_trainers_with_checkpointing(
    causal: LoadedWorkload, tmp_path: Path, every_n_layers: int
) -> None:
    configuration = configured(4, 2, Checkpointing(every_n_layers=every_n_layers))
    real = train(causal, configuration, tmp_path, num_steps=2)
    assert losses(stepper_of(causal, configuration, tmp_path), 2) == pytest.approx(
        real.losses, abs=6e-5
    )


def test_losses_are_the_trainers_whether_parity_holds_or_not(
    classifier: LoadedWorkload, tmp_path: Path
) -> None:
    configuration = configured(2, 4)
    real = train(classifier, configuration, tmp_path, num_steps=2)
    found = losses(stepper_of(classifier, configuration, tmp_path), 2)
    assert found == pytest.approx(real.losses, abs=6e-5)
    whole = losses(stepper_of(classifier, configured(8, 1), tmp_path), 1)
    repaired = losses(stepper_of(classifier, configuration, tmp_path, repair_loss=True), 1)
    assert repaired == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("checkpointing", [Checkpointing(), EVERY_LAYER], ids=str)
def test_both_loops_have_the_same_losses(
    classifier: LoadedWorkload, tmp_path: Path, checkpointing: Checkpointing
) -> None:
    configuration = configured(2, 4, checkpointing)
    by_trainer, by_accelerate = (
        losses(stepper_of(classifier, configuration, tmp_path, driver=d, repair_loss=True), 3)
        for d in DRIVERS
    )
    assert by_accelerate == pytest.approx(by_trainer, rel=1e-5)
    assert abs(by_trainer[0] - by_trainer[1]) > 1e-4


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_step_moves_the_weights_alike_however_it_is_split(tmp_path: Path, driver: Driver) -> None:
    workload = workloads.loaded(workloads.causal_spec(tmp_path, 16, optim="sgd"), tmp_path)
    before = dict(workload.model.named_parameters())
    after = {}
    for micro, accumulation in ((8, 1), (2, 4), (1, 8)):
        stepper = stepper_of(workload, configured(micro, accumulation), tmp_path, driver=driver)
        losses(stepper, 1)
        after[micro] = dict(stepper.workload.model.named_parameters())
    assert max(float((after[8][n] - before[n]).detach().abs().max()) for n in before) > 1e-3
    for micro in (1, 2):
        for name, parameter in after[8].items():
            torch.testing.assert_close(after[micro][name], parameter, rtol=0, atol=1e-6)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("micro", "accumulation", "sizes"), [(64, 1, [7]), (2, 8, [2, 2, 2, 1])])
def test_fewer_rows_than_a_window_are_all_there_is(
    seven: LoadedWorkload,
    tmp_path: Path,
    driver: Driver,
    micro: int,
    accumulation: int,
    sizes: list[int],
) -> None:
    stepper = stepper_of(seven, configured(micro, accumulation), tmp_path, driver=driver)
    found = windows(stepper, 3)
    assert [[len(batch) for batch in window] for window in found] == [sizes] * 3
    assert len({tuple(sorted(flat(window))) for window in found}) == 1
    assert len({tuple(flat(window)) for window in found}) == 3, "each epoch has its own order"
    assert len(set(flat(found[0]))) == 7
    assert losses(stepper, 1)[0] > 0


def test_the_short_window_of_a_small_dataset_trains_as_the_trainer_does(
    seven: LoadedWorkload, tmp_path: Path
) -> None:
    configuration = configured(2, 8)
    real = train(seven, configuration, tmp_path, num_steps=2)
    assert losses(stepper_of(seven, configuration, tmp_path), 2) == pytest.approx(
        real.losses, abs=6e-5
    )


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("num_rows", [7, 21])
def test_streams_are_read_in_their_order(tmp_path: Path, driver: Driver, num_rows: int) -> None:
    spec = workloads.causal_spec(tmp_path, num_rows, streaming=True)
    workload = workloads.loaded(spec, tmp_path)
    assert workload.facts.num_rows is None
    stepper = stepper_of(workload, configured(2, 4), tmp_path, driver=driver)
    found = windows(stepper, 3)
    order = rows_of(workload.data_collator(workload.typical_rows(num_rows)))
    if num_rows == 7:
        assert [flat(window) for window in found] == [order] * 3
    else:
        assert [flat(window) for window in found] == [order[:8], order[8:16], order[:8]]
    assert losses(stepper, 1)[0] > 0


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_loader_puts_what_it_fetches_where_it_is_trained_on(
    causal: LoadedWorkload, tmp_path: Path, driver: Driver
) -> None:
    """So that all micro-batches of a step wait there, which the law of memory counts on."""
    stepper = stepper_of(causal, configured(2, 4), tmp_path, driver=driver)
    loader: Any = stepper
    assert loader._dataloader.device == stepper.device


def test_no_batch_at_all_is_said(causal: LoadedWorkload, tmp_path: Path) -> None:
    arguments = {**causal.arguments, "dataloader_drop_last": True}
    stepper = stepper_of(
        replace(causal, arguments=arguments), configured(64, 1), tmp_path, driver="trainer"
    )
    with pytest.raises(ValueError, match="yields no batch at a micro-batch size of 64"):
        stepper.next_window()


class Odd(nn.Module):
    """Norms by class and by name, biases, embeddings, and weights that do not train."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.scale = nn.LayerNorm(4)
        self.pre_norm = nn.Linear(4, 4)
        self.plain = nn.Linear(4, 4)
        self.gain = nn.Parameter(torch.ones(4))
        self.frozen = nn.Linear(4, 4).requires_grad_(requires_grad=False)


def names_of(groups: list[dict[str, Any]], model: nn.Module) -> list[set[str]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [{names[id(p)] for p in group["params"]} for group in groups]


def test_what_decays_is_what_decays_in_the_trainer(tmp_path: Path, causal: LoadedWorkload) -> None:
    for model in (Odd(), causal.model):
        with quiet():
            trainer = Trainer(
                model=model,
                args=TrainingArguments(output_dir=str(tmp_path), weight_decay=0.3, report_to=[]),
            )
            optimizer = trainer.create_optimizer()
        groups: Any = decay_groups(model, 0.3)
        assert names_of(groups, model) == names_of(optimizer.param_groups, model)
        assert [group["weight_decay"] for group in groups] == [0.3, 0.0]


def test_norms_and_biases_do_not_decay() -> None:
    model = Odd()
    groups: Any = decay_groups(model, 0.1)
    decayed, others = names_of(groups, model)
    assert {"table.weight", "plain.weight", "gain"} <= decayed
    assert {"scale.weight", "scale.bias", "plain.bias", "pre_norm.bias"} <= others
    assert not {"frozen.weight", "frozen.bias"} & (decayed | others)


@pytest.mark.parametrize("driver", DRIVERS)
def test_gradients_are_cleared_and_the_rate_goes_by_the_schedule(
    causal: LoadedWorkload, tmp_path: Path, driver: Driver
) -> None:
    stepper = stepper_of(causal, configured(4, 2), tmp_path, driver=driver)
    rates = []
    for _ in range(3):
        losses(stepper, 1)
        rates.append(stepper.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1e-2 * (1 - n / 1_000_000) for n in (1, 2, 3)], rel=1e-12)
    assert all(p.grad is None for p in stepper.model.parameters())


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("checkpointing", [Checkpointing(), EVERY_LAYER], ids=str)
def test_adapters_alone_are_trained(
    tmp_path: Path, driver: Driver, checkpointing: Checkpointing
) -> None:
    pytest.importorskip("peft")
    workload = jobs.make(jobs.classify_with_lora, tmp_path).workload
    before = dict(workload.model.named_parameters())
    stepper = stepper_of(workload, configured(2, 2, checkpointing), tmp_path, driver=driver)
    losses(stepper, 2)
    moved = {
        name: not torch.equal(parameter, before[name])
        for name, parameter in stepper.workload.model.named_parameters()
    }
    assert moved == {name: parameter.requires_grad for name, parameter in before.items()}
    assert 0 < sum(moved.values()) < len(moved)


def test_rows_are_counted_by_the_first_tensor_that_has_any() -> None:
    assert num_rows({"scalar": torch.tensor(3), "ids": torch.zeros(5, 2)}) == 5
    assert num_rows({}) == 0


def test_both_loops_train_in_the_workloads_precision(
    classifier: LoadedWorkload, tmp_path: Path
) -> None:
    exact = losses(stepper_of(classifier, configured(8, 1), tmp_path), 1)[0]
    half = replace(classifier, arguments={**classifier.arguments, "bf16": True})
    for driver in DRIVERS:
        found = losses(stepper_of(half, configured(8, 1), tmp_path, driver=driver), 1)[0]
        assert found != exact
        assert found == pytest.approx(exact, rel=1e-2)
