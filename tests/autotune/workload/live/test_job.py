"""Taking a Trainer apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from autotune.errors import UsageError, WorkloadError
from autotune.workload.live.job import is_checkpointing, job_of_parts, job_of_trainer
from autotune.workload.live.trainer import make_trainer
from autotune.workload.loaded import Evaluation
from tests.testing import live


def test_the_parts_are_the_trainers_own(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    job = job_of_trainer(trainer)
    assert job.model is trainer.model
    assert job.train_dataset is trainer.train_dataset
    assert job.data_collator is live.pad
    assert job.optimizers == (None, None)
    assert job.configuration.micro_batch_size == 2
    assert not set(job.trainer_attributes) - {
        "label_names",
        "can_return_loss",
        "model_accepts_loss_kwargs",
        "label_smoother",
    }


def test_how_it_evaluates_is_known(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    assert job_of_trainer(trainer).evaluation == Evaluation()
    trainer.compute_metrics = lambda prediction: {}
    trainer.preprocess_logits_for_metrics = live.pad
    trainer.eval_dataset = {"long": live.Tokens(5), "short": live.Tokens(3)}
    trainer.args.eval_accumulation_steps = 4
    trainer.args.per_device_eval_batch_size = 2
    kept = Evaluation(
        keeps_outputs=True,
        accumulation_steps=4,
        micro_batch_size=2,
        num_rows=5,
        preprocess_logits=live.pad,
    )
    assert job_of_trainer(trainer).evaluation == kept
    trainer.args.include_for_metrics = ["inputs"]
    assert job_of_trainer(trainer).evaluation == replace(kept, keeps_inputs=True)
    trainer.args.batch_eval_metrics = True
    assert not job_of_trainer(trainer).evaluation.keeps_inputs
    assert not job_of_trainer(trainer).evaluation.keeps_outputs


def test_what_a_subclass_keeps_on_itself_comes_back(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path, kind=live.WeightedTrainer, options={"weight": 3.0})
    job = job_of_trainer(trainer)
    assert job.trainer_attributes["weight"] == 3.0
    again = make_trainer(
        job.model,
        live.arguments(tmp_path),
        train_dataset=job.train_dataset,
        data_collator=job.data_collator,
        processing_class=job.processing_class,
        trainer_class=job.trainer_class,
        options=job.trainer_options,
        attributes=job.trainer_attributes,
    )
    assert isinstance(again, live.WeightedTrainer)
    batch = live.pad([trainer.train_dataset[0]])
    trainer.model.eval()
    with torch.no_grad():
        assert again.compute_loss(again.model, dict(batch)) == trainer.compute_loss(
            trainer.model, dict(batch)
        )


def test_a_method_that_was_replaced_on_the_object_comes_back(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    trainer.compute_loss = lambda *args, **kwargs: torch.tensor(5.0)
    assert job_of_trainer(trainer).trainer_attributes["compute_loss"] is trainer.compute_loss


def test_an_optimizer_of_the_users_own_is_taken_along(tmp_path: Path) -> None:
    model = live.gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = live.trainer(tmp_path, model=model, options={"optimizers": (optimizer, None)})
    assert job_of_trainer(trainer).optimizers[0] is optimizer


def test_an_optimizer_that_an_earlier_train_made_is_not(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path, max_steps=1)
    trainer.train()
    assert trainer.optimizer is not None
    assert job_of_trainer(trainer).optimizers == (None, None)


def test_a_custom_loss_function_is_taken_along(tmp_path: Path) -> None:
    def loss(outputs: object, labels: torch.Tensor, num_items_in_batch: object) -> torch.Tensor:
        return torch.tensor(0.0)

    trainer = live.trainer(tmp_path, options={"compute_loss_func": loss})
    assert job_of_trainer(trainer).trainer_options["compute_loss_func"] is loss


@pytest.mark.parametrize("what", ["DeepSpeed", "FSDP"])
def test_sharded_training_is_refused_in_a_sentence(what: str, tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    name = "is_deepspeed_enabled" if what == "DeepSpeed" else "is_fsdp_enabled"
    setattr(trainer, name, True)
    with pytest.raises(UsageError, match=f"trained under {what}"):
        job_of_trainer(trainer)


def test_a_trainer_that_trains_is_refused(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    trainer.is_in_train = True
    with pytest.raises(UsageError, match="in the middle of train"):
        job_of_trainer(trainer)


def test_several_devices_in_one_process_are_refused(tmp_path: Path) -> None:
    arguments = live.arguments(tmp_path)
    arguments._n_gpu = 2
    with pytest.raises(UsageError, match="2 devices at once"):
        job_of_parts(model=live.gpt2(), arguments=arguments, train_dataset=live.Tokens())


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"model": None}, UsageError, "The model is a NoneType"),
        ({"model": "gpt2"}, UsageError, "The model is a str"),
        ({"arguments": None}, UsageError, "args is a NoneType"),
        ({"arguments": SimpleNamespace()}, UsageError, "args is a SimpleNamespace"),
        ({"train_dataset": None}, WorkloadError, "no training data"),
        ({"train_dataset": live.Tokens(0)}, WorkloadError, "has no rows"),
    ],
)
def test_a_part_that_is_missing_is_named(
    changes: dict[str, object], error: type[UsageError], says: str, tmp_path: Path
) -> None:
    parts: dict[str, object] = {
        "model": live.gpt2(),
        "arguments": live.arguments(tmp_path),
        "train_dataset": live.Tokens(),
        **changes,
    }
    with pytest.raises(error, match=says):
        job_of_parts(**parts)  # type: ignore[arg-type]


def test_checkpointing_is_seen_on_the_model() -> None:
    model = live.gpt2()
    assert not is_checkpointing(model)
    live.switch_on(model)
    assert is_checkpointing(model)
    assert not is_checkpointing(torch.nn.Linear(2, 2))


def test_every_attribute_of_the_base_class_is_known() -> None:
    from autotune.workload.live.job import _names_of_base

    assert {"model", "accelerator", "optimizer", "lr_scheduler", "state"} <= _names_of_base()


def test_a_model_without_values_is_refused(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    trainer.model.transformer.ln_f.to("meta")
    with pytest.raises(UsageError, match=r"ln_f\.weight of the model is on the meta device"):
        job_of_trainer(trainer)


def test_a_quantised_model_is_refused_unless_it_has_something_to_train(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    trainer.model.is_quantized = True
    with pytest.raises(UsageError, match="is quantised and has no adapters") as caught:
        job_of_trainer(trainer)
    assert "get_peft_model" in (caught.value.remedy or "")
    trainer.model.hf_quantizer = SimpleNamespace(is_trainable=True)
    assert job_of_trainer(trainer).model is trainer.model


def test_a_model_that_learns_nothing_is_refused(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    trainer.model.requires_grad_(False)
    with pytest.raises(UsageError, match="Every parameter of this GPT2LMHeadModel is frozen"):
        job_of_trainer(trainer)
    trainer.model.transformer.wte.requires_grad_(True)
    assert job_of_trainer(trainer).model is trainer.model
