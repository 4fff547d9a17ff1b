"""Captured jobs in the child: the same rows, losses and steps as the user's own Trainer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import peft
import pytest
import torch
from transformers import DataCollatorWithFlattening, PreTrainedModel, Trainer

from autotune.configuration import Checkpointing, Configuration
from autotune.errors import UsageError, WorkloadError
from autotune.trial.readings.checks import check_parity
from autotune.trial.readings.meter import SpeedSession
from autotune.trial.stepper import TrainerStepper, train_window
from autotune.workload.live.capture import capture
from autotune.workload.live.job import job_of_trainer
from autotune.workload.live.unpack import unpack
from autotune.workload.loaded import LoadedWorkload
from autotune.workload.spec import Capsule
from tests.testing import live
from tests.testing.recommendations import configuration

pytestmark = [
    pytest.mark.filterwarnings("ignore:Seems like `optimizer.step"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
]

CAPSULE = Capsule(name="job", file="capsule.pt", digest="d", precision="fp32")


def unpacked(trainer: Trainer | Callable[[], Trainer], directory: Path) -> LoadedWorkload:
    """The workload that a child would have."""
    job = job_of_trainer(trainer) if isinstance(trainer, Trainer) else trainer
    capture(job, directory / CAPSULE.file)
    return unpack(CAPSULE, directory)


def first_losses(workload: LoadedWorkload, directory: Path, chosen: Configuration) -> list[float]:
    """Losses of two optimizer steps of a trial."""
    stepper = TrainerStepper(workload, chosen, str(directory / "trial"))
    return [float(train_window(stepper, stepper.next_window())) for _ in range(2)]


def own_losses(trainer: Trainer) -> list[float]:
    """What the user's own training reports for its first two optimizer steps."""
    trainer.args.max_steps = 2
    trainer.args.logging_steps = 1
    trainer.args.logging_strategy = "steps"
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def without_dropout() -> PreTrainedModel:
    model = live.gpt2()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def plain(directory: Path) -> Trainer:
    return live.trainer(directory, model=without_dropout())


def with_adapters(directory: Path) -> Trainer:
    options = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"])
    return live.trainer(
        directory, model=peft.get_peft_model(without_dropout(), options), learning_rate=0.1
    )


def with_own_loss(directory: Path) -> Trainer:
    def loss(
        outputs: object, labels: torch.Tensor, num_items_in_batch: torch.Tensor
    ) -> torch.Tensor:
        logits = outputs["logits"]  # type: ignore[index]
        each = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="sum"
        )
        return 0.5 * each / num_items_in_batch

    return live.trainer(
        directory,
        model=without_dropout(),
        options={"compute_loss_func": loss},
    )


def of_a_subclass(directory: Path) -> Trainer:
    return live.trainer(
        directory,
        kind=live.WeightedTrainer,
        model=without_dropout(),
        options={"weight": 3.0},
    )


def with_more_columns(directory: Path) -> Trainer:
    tokens = live.Tokens()
    rows = [{**tokens[i], "text": "not for the model", "number": i} for i in range(32)]
    return live.trainer(
        directory,
        model=without_dropout(),
        train_dataset=datasets.Dataset.from_list(rows),
    )


def with_own_optimizer(directory: Path) -> Trainer:
    model = without_dropout()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    return live.trainer(
        directory,
        model=model,
        options={"optimizers": (optimizer, schedule)},
    )


def of_a_stream(directory: Path) -> Trainer:
    return live.trainer(
        directory,
        model=without_dropout(),
        train_dataset=live.TokenStream(),
        max_steps=4,
    )


KINDS = (
    plain,
    with_adapters,
    with_own_loss,
    of_a_subclass,
    with_more_columns,
    with_own_optimizer,
    of_a_stream,
)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("chosen", [configuration(2, 2), configuration(4, 1)], ids=str)
def test_a_trial_trains_as_the_users_own_trainer_does(
    make: Callable[[Path], Trainer], chosen: Configuration, tmp_path: Path
) -> None:
    workload = unpacked(make(tmp_path), tmp_path)
    found = first_losses(workload, tmp_path, chosen)
    expected = own_losses(make(tmp_path))
    # What the training reports is rounded to four digits, and has been summed another way.
    assert found == pytest.approx(expected, rel=2e-3)


def test_figures_of_the_job(tmp_path: Path) -> None:
    facts = unpacked(with_adapters(tmp_path), tmp_path).facts
    assert facts.model_class == "PeftModelForCausalLM"
    assert 0 < facts.num_trainable_parameters < facts.num_parameters
    assert (facts.num_rows, facts.tokens_max) == (32, 16)
    assert facts.baseline == configuration(2, 2)
    assert facts.chosen is None
    assert facts.task == "Trainer"


def test_a_stream_has_no_length(tmp_path: Path) -> None:
    facts = unpacked(of_a_stream(tmp_path), tmp_path).facts
    assert facts.num_rows is None
    assert "stream" in facts.notes[0]


def test_rows_that_a_collator_joins_are_counted(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    trainer.data_collator = DataCollatorWithFlattening()
    trainer.train_dataset = datasets.Dataset.from_list([live.Tokens()[i] for i in range(16)])
    workload = unpacked(trainer, tmp_path)
    stepper = TrainerStepper(workload, configuration(4, 2), str(tmp_path / "trial"))
    assert [stepper.num_rows(batch) for batch in stepper.next_window()] == [4, 4]


def test_rows_that_cannot_be_counted_are_refused(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    trainer.data_collator = lambda rows: {"input_ids": torch.zeros(1, 4, dtype=torch.long)}
    with pytest.raises(WorkloadError, match="a batch of 1 out of 2 rows"):
        unpacked(trainer, tmp_path)


def test_data_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    class Broken(live.Tokens):
        def __getitem__(self, index: int) -> dict[str, list[int]]:
            raise FileNotFoundError("images/0.png")

    with pytest.raises(WorkloadError, match=r"FileNotFoundError: images/0\.png") as caught:
        unpacked(live.trainer(tmp_path, train_dataset=Broken()), tmp_path)
    assert "for row in train_dataset" in (caught.value.remedy or "")


def test_a_function_makes_the_trainer(tmp_path: Path) -> None:
    directory = tmp_path

    def make() -> Trainer:
        changes: dict[str, Any] = {live.CHECKPOINTING: True}
        return live.trainer(directory, **changes)

    facts = unpacked(make, tmp_path).facts
    assert facts.baseline == Configuration(
        micro_batch_size=2, accumulation_steps=2, checkpointing=Checkpointing(every_n_layers=1)
    )


def test_a_function_that_makes_something_else_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="returned a int, not a Trainer"):
        unpacked(lambda: 3, tmp_path)


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / CAPSULE.file).write_bytes(b"nothing")
    with pytest.raises(UsageError, match="cannot be made again") as caught:
        unpack(CAPSULE, tmp_path)
    assert "make_trainer" in (caught.value.remedy or "")


def test_the_environment_is_as_before(tmp_path: Path) -> None:
    before = dict(os.environ)
    unpacked(live.trainer(tmp_path, bf16=True), tmp_path)
    assert dict(os.environ) == before


def test_a_loss_that_is_no_number_is_told_and_timed_all_the_same(tmp_path: Path) -> None:
    def nothing(outputs: object, labels: torch.Tensor, num_items_in_batch: object) -> torch.Tensor:
        return outputs["logits"].sum() * float("nan")  # type: ignore[index,no-any-return]

    trainer = live.trainer(tmp_path, options={"compute_loss_func": nothing}, max_grad_norm=0.0)
    workload = unpacked(trainer, tmp_path)
    place = str(tmp_path / "trial")
    with pytest.raises(WorkloadError, match="loss of the model is nan on 4 rows"):
        check_parity(workload, num_rows=4, accumulation_steps=2, driver="trainer", output_dir=place)
    stepper = TrainerStepper(workload, configuration(2, 2), place)
    speed = SpeedSession(stepper, lambda progress: None).block(min_steps=2, max_steps=2)
    assert speed.losses == (None, None)
    assert all(time_s > 0 for time_s in speed.step_times_s)
