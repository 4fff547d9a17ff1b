"""What of TrainingArguments goes along to a trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.configuration import Checkpointing, Configuration
from autotune.workload.live.arguments import configuration_of, kept_arguments, precision_of
from tests.testing import live


def test_only_what_changes_a_training_step_is_kept(tmp_path: Path) -> None:
    arguments = live.arguments(
        tmp_path,
        learning_rate=1e-3,
        weight_decay=0.1,
        optim="sgd",
        lr_scheduler_type="cosine",
        dataloader_num_workers=1,
        seed=7,
        hub_token="hf_secret",
        hub_model_id="me/mine",
        run_name="mine",
        logging_steps=3,
        save_steps=11,
        eval_steps=13,
        max_steps=17,
    )
    kept = dict(kept_arguments(arguments))
    for name in ("accelerator_config", "lr_scheduler_kwargs", "dataloader_pin_memory"):
        # The class itself sets these, differently from version to version.
        kept.pop(name, None)
    assert kept == {
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "optim": "sgd",
        "lr_scheduler_type": "cosine",
        "dataloader_num_workers": 1,
        "seed": 7,
        "use_cpu": True,
    }


def test_kept_arguments_make_the_same_arguments_again(tmp_path: Path) -> None:
    arguments = live.arguments(tmp_path, bf16=True, optim="adafactor", warmup_steps=5)
    again = type(arguments)(output_dir="elsewhere", **kept_arguments(arguments))
    for name in ("bf16", "optim", "warmup_steps", "learning_rate", "seed", "max_grad_norm"):
        assert getattr(again, name) == getattr(arguments, name)
    assert precision_of(again) == "bf16"


def test_a_schedule_that_waits_for_evaluations_is_replaced(tmp_path: Path) -> None:
    arguments = live.arguments(
        tmp_path, lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="steps", eval_steps=5
    )
    assert kept_arguments(arguments)["lr_scheduler_type"] == "constant"


def test_the_count_that_a_trainer_leaves_in_the_plugin_options_is_dropped(tmp_path: Path) -> None:
    trainer = live.trainer(
        tmp_path,
        gradient_accumulation_steps=1,
        accelerator_config={"gradient_accumulation_kwargs": {"num_steps": 4}},
    )
    kept = kept_arguments(trainer.args)["accelerator_config"]
    assert isinstance(kept, dict)
    assert kept["gradient_accumulation_kwargs"] == {}
    assert trainer.args.gradient_accumulation_steps == 4


@pytest.mark.parametrize(
    ("changes", "told", "expected"),
    [
        ({}, False, Checkpointing()),
        ({live.CHECKPOINTING: True}, False, Checkpointing(every_n_layers=1)),
        ({}, True, Checkpointing(every_n_layers=1)),
    ],
)
def test_the_configuration_of_a_job(
    changes: dict[str, object], told: bool, expected: Checkpointing, tmp_path: Path
) -> None:
    arguments = live.arguments(tmp_path, **changes)
    assert configuration_of(arguments, is_checkpointing=told, world_size=3) == Configuration(
        micro_batch_size=2, accumulation_steps=2, world_size=3, checkpointing=expected
    )


def test_the_number_of_layers_between_checkpoints_is_read(tmp_path: Path) -> None:
    arguments = live.arguments(tmp_path)
    if not hasattr(arguments, "activation_checkpointing"):
        pytest.skip("this transformers checkpoints every layer or none")
    arguments = live.arguments(
        tmp_path,
        activation_checkpointing=True,
        activation_checkpointing_kwargs={"every_n_layers": 2},
    )
    found = configuration_of(arguments, is_checkpointing=False, world_size=1)
    assert found.checkpointing == Checkpointing(every_n_layers=2)
