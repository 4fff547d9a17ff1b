"""A recommendation that was applied is really in force: proven by a real train()."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from autotune.errors import UsageError
from autotune.library.apply import apply, remade
from autotune.workload.live.job import is_checkpointing
from tests.testing import live
from tests.testing.recommendations import configuration


class Watched(Trainer):  # type: ignore[misc]
    """Notes the loss of every optimizer step."""

    def training_step(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        """The Trainer's own."""
        loss = super().training_step(*args, **kwargs)
        self.losses = [*getattr(self, "losses", []), float(loss)]
        return loss


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Libraries may warn of themselves; ours would say so.
        for category in (FutureWarning, DeprecationWarning):
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("ignore", message="(?!autotune)")
        yield


def train(trainer: Trainer, num_steps: int = 3) -> live.BatchCounter:
    counter = live.BatchCounter(trainer.model)
    trainer.args.max_steps = num_steps
    trainer.train()
    counter.close()
    return counter


def recomputed_layers(trainer: Trainer) -> int:
    """Layers whose forward pass ran twice in one training step, counted from outside."""
    calls: dict[int, int] = {}

    def count(module: torch.nn.Module, *_: object) -> None:
        calls[id(module)] = calls.get(id(module), 0) + 1

    # Recomputing ends early, once everything that the backward pass needs is there.
    handles = [b.attn.register_forward_pre_hook(count) for b in trainer.model.transformer.h]
    trainer.args.max_steps = 1
    steps = trainer.args.gradient_accumulation_steps
    trainer.train()
    for handle in handles:
        handle.remove()
    return sum(number == 2 * steps for number in calls.values())


@pytest.mark.parametrize(("micro", "accumulation"), [(4, 1), (1, 4), (2, 2)])
def test_rows_per_micro_batch_and_per_update(micro: int, accumulation: int, tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    with quiet():
        apply(trainer, configuration(micro, accumulation), repair_loss=False)
    counter = train(trainer)
    assert counter.rows == [micro] * (3 * accumulation)
    assert trainer.state.global_step == 3


@pytest.mark.parametrize(("micro", "accumulation"), [(4, 1), (1, 4)])
def test_the_first_step_has_the_untouched_trainers_loss(
    micro: int, accumulation: int, tmp_path: Path
) -> None:
    losses = []
    for change in (False, True):
        model = live.gpt2()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        trainer = live.trainer(tmp_path, kind=Watched, model=model)
        if change:
            apply(trainer, configuration(micro, accumulation), repair_loss=False)
        train(trainer, 1)
        losses.append(sum(trainer.losses))
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_weights_after_an_epoch_are_the_same(tmp_path: Path) -> None:
    weights = []
    for change in (False, True):
        model = live.gpt2()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        # Rows of one length: earlier versions weigh micro-batches, not tokens.
        rows = live.Tokens(lengths=(8,))
        trainer = live.trainer(tmp_path, model=model, train_dataset=rows, num_train_epochs=1)
        if change:
            apply(trainer, configuration(1, 4, every_n_layers=1), repair_loss=False)
        trainer.train()
        assert trainer.state.global_step == 8
        weights.append(trainer.model.transformer.wte.weight.detach().clone())
    assert torch.allclose(weights[0], weights[1], atol=2e-5)


@pytest.mark.parametrize("was_on", [False, True])
@pytest.mark.parametrize("every_n_layers", [None, 1])
def test_checkpointing_is_switched_on_and_off(
    was_on: bool, every_n_layers: int | None, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {live.CHECKPOINTING: was_on}
    trainer = live.trainer(tmp_path, **changes)
    if was_on:
        live.switch_on(trainer.model)
    apply(trainer, configuration(4, 1, every_n_layers), repair_loss=False)
    assert is_checkpointing(trainer.model) is (every_n_layers is not None)
    assert recomputed_layers(trainer) == (2 if every_n_layers else 0)


def test_every_second_layer_is_checkpointed_where_that_exists(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path, model=live.gpt2(num_layers=4))
    if "activation_checkpointing" not in {f.name for f in fields(trainer.args)}:
        pytest.skip("this transformers checkpoints every layer or none")
    apply(trainer, configuration(4, 1, every_n_layers=2), repair_loss=False)
    assert recomputed_layers(trainer) == 2


def test_a_loss_that_ignores_the_count_is_mended(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    trainer.model_accepts_loss_kwargs = True
    apply(trainer, configuration(1, 4), repair_loss=True)
    assert trainer.model_accepts_loss_kwargs is False


def test_a_second_count_of_accumulation_is_taken_out(tmp_path: Path) -> None:
    trainer = live.trainer(
        tmp_path,
        gradient_accumulation_steps=1,
        accelerator_config={"gradient_accumulation_kwargs": {"num_steps": 2}},
    )
    apply(trainer, configuration(1, 4), repair_loss=False)
    assert train(trainer, 2).rows == [1] * 8
    # The same arguments make another Trainer, which would refuse two counts.
    Trainer(model=live.gpt2(), args=trainer.args)


def test_auto_find_batch_size_is_switched_off_and_told(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path, auto_find_batch_size=True)
    with pytest.warns(UserWarning, match="auto_find_batch_size is switched off"):
        apply(trainer, configuration(4, 1), repair_loss=False)
    assert trainer.args.auto_find_batch_size is False


def test_another_global_batch_size_keeps_the_rows_of_the_run(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path, train_dataset=live.TokenStream(64), max_steps=6)
    with pytest.warns(
        UserWarning, match="max_steps is 12 instead of 6.*global batch size is 2 instead of 4"
    ):
        apply(trainer, configuration(2, 1), repair_loss=False)
    counter = live.BatchCounter(trainer.model)
    trainer.train()
    assert sum(counter.rows) == 6 * 4
    assert trainer.state.global_step == 12


def test_a_trainer_that_was_trained_before_can_be_changed(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    assert train(trainer, 2).rows == [2] * 4
    apply(trainer, configuration(4, 1), repair_loss=False)
    assert train(trainer, 2).rows == [4] * 2


def test_what_cannot_hold_is_refused(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    with pytest.raises(UsageError, match=r"2 ranks, and this Trainer has 1"):
        apply(trainer, configuration(2, 1, world_size=2), repair_loss=False)
    averaging = replace(configuration(2, 2), local_sgd_steps=8)
    with pytest.raises(UsageError, match="needs several ranks"):
        apply(trainer, averaging, repair_loss=False)
    trainer.is_in_train = True
    with pytest.raises(UsageError, match="in the middle of train"):
        apply(trainer, configuration(4, 1), repair_loss=False)


class _Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}


def test_a_model_without_a_switch_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    trainer = Trainer(model=_Plain(), args=live.arguments(tmp_path))
    with pytest.raises(UsageError, match="_Plain cannot be told to use checkpointing every layer"):
        apply(trainer, configuration(4, 1, every_n_layers=1), repair_loss=False)
    assert trainer.args.per_device_train_batch_size == 2
    apply(trainer, configuration(4, 1), repair_loss=False)
    assert trainer._train_batch_size == 4


def plain(arguments: TrainingArguments) -> dict[str, object]:
    found: dict[str, object] = copy.deepcopy(arguments.to_dict())
    return found


def test_arguments_are_made_anew_from_the_jobs_own(tmp_path: Path) -> None:
    own = live.arguments(tmp_path, learning_rate=0.5, **{live.CHECKPOINTING: True})
    before = plain(own)
    made = remade(
        own, configuration(4, 1), precision="fp32", changes={"output_dir": "new", "max_steps": 9}
    )
    assert plain(own) == before, "what it started from is left as it is"
    assert (made.per_device_train_batch_size, made.gradient_accumulation_steps) == (4, 1)
    assert (made.learning_rate, made.output_dir, made.max_steps) == (0.5, "new", 9)
    assert not getattr(made, live.CHECKPOINTING)
    trainer = Trainer(
        model=live.gpt2(),
        args=made,
        train_dataset=live.Tokens(),
        data_collator=live.pad,
    )
    assert train(trainer, 2).rows == [4, 4]


def test_arguments_are_made_of_nothing_but_the_answer() -> None:
    made = remade(
        None, configuration(4, 2, every_n_layers=1), precision="bf16", changes={"use_cpu": True}
    )
    assert (made.per_device_train_batch_size, made.gradient_accumulation_steps) == (4, 2)
    assert getattr(made, live.CHECKPOINTING)
    assert made.bf16


def test_a_field_that_is_not_there_is_named_with_the_near_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        remade(None, configuration(4, 2), precision="fp32", changes={"learning_rat": 1.0})
    assert "has no field 'learning_rat'" in caught.value.cause
    assert "learning_rate" in (caught.value.remedy or "")


def test_nothing_is_changed_where_everything_holds_already(tmp_path: Path) -> None:
    changes: dict[str, Any] = {live.CHECKPOINTING: True}
    trainer = live.trainer(tmp_path, **changes)
    before, accelerator = plain(trainer.args), trainer.accelerator
    with quiet():
        apply(trainer, configuration(2, 2, every_n_layers=1), repair_loss=False)
    assert plain(trainer.args) == before
    assert trainer.accelerator is accelerator


def test_only_a_trainer_can_be_changed() -> None:
    with pytest.raises(UsageError, match="A GPT2LMHeadModel is no Trainer"):
        apply(live.gpt2(), configuration(2, 2), repair_loss=False)


def test_a_knob_that_is_overridden_is_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="per_device_train_batch_size is not the recommended"):
        made = remade(
            live.arguments(tmp_path),
            configuration(4, 1),
            precision="fp32",
            changes={"per_device_train_batch_size": 3},
        )
    assert (made.per_device_train_batch_size, made.gradient_accumulation_steps) == (3, 1)
