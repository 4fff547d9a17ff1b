"""Attaching, on one rank."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import TrainerCallback

from autotune import FusedLocalSGD, LocalSGDCallback
from autotune.errors import UsageError
from autotune.runtime.callback import attached_to
from autotune.runtime.plain import warn_of_batch_norm
from tests.testing import live


@pytest.fixture
def accelerator(tmp_path: Path) -> Accelerator:
    """Of one rank, on the CPU."""
    found: Accelerator = live.trainer(tmp_path).accelerator
    return found


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"local_sgd_steps": 1}, "cannot average every 1 optimizer step."),
    ({"local_sgd_steps": 0}, "cannot average every 0 optimizer steps."),
    ({"local_sgd_steps": "auto"}, "local_sgd_steps is a whole number, not 'auto'."),
    ({"local_sgd_steps": None}, "local_sgd_steps is a whole number, not None."),
    ({"local_sgd_steps": True}, "local_sgd_steps is a whole number, not True."),
    ({"local_sgd_steps": 1.5}, "local_sgd_steps is a whole number, not 1.5."),
    ({"local_sgd_steps": [4]}, "local_sgd_steps is a whole number, not a list."),
    ({"ddp_steps": -1}, "no -1 first steps"),
    ({"ddp_steps": "x"}, "ddp_steps is a whole number, not 'x'."),
    ({"ddp_steps": None}, "ddp_steps is a whole number, not None."),
    ({"ddp_steps": 2.0}, "ddp_steps is a whole number, not 2.0."),
    ({"qsr_alpha": 0.0}, "qsr_alpha is a positive number, not 0.0."),
    ({"qsr_alpha": float("inf")}, "qsr_alpha is a positive number, not inf."),
    ({"qsr_alpha": float("nan")}, "qsr_alpha is a positive number, not nan."),
    ({"qsr_alpha": "auto"}, "qsr_alpha is a number, not 'auto'."),
    ({"qsr_alpha": True}, "qsr_alpha is a number, not True."),
]


@pytest.mark.parametrize(("values", "cause"), WRONG)
def test_numbers_that_cannot_work_are_refused(values: dict[str, Any], cause: str) -> None:
    with pytest.raises(UsageError, match=re.escape(cause)) as caught:
        LocalSGDCallback(**values)
    assert caught.value.remedy


def test_whole_numbers_of_other_libraries_will_do() -> None:
    callback = LocalSGDCallback(np.int64(4), qsr_alpha=np.float32(0.5))  # type: ignore[arg-type]
    assert callback.local_sgd_steps == 4
    assert type(callback.local_sgd_steps) is int


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"accelerator": None}, "accelerator is an accelerate.Accelerator, not None."),
        ({"model": None}, "model is a torch.nn.Module, not None."),
        ({"model": "gpt2"}, "model is a torch.nn.Module, not 'gpt2'."),
        ({"enabled": "x"}, "enabled is True or False, not 'x'."),
        ({"local_sgd_steps": 0}, "Ranks cannot average every 0 steps."),
        *(case for case in WRONG if "local_sgd_steps is" in case[1]),
    ],
)
def test_a_loop_is_refused_the_same(
    changes: dict[str, Any], cause: str, accelerator: Accelerator
) -> None:
    values = {"accelerator": accelerator, "model": torch.nn.Linear(2, 2), "local_sgd_steps": 4}
    with pytest.raises(UsageError, match=re.escape(cause)) as caught:
        FusedLocalSGD(**values | changes)
    assert caught.value.remedy


def test_a_loop_with_its_arguments_exchanged_is_told_so(accelerator: Accelerator) -> None:
    with pytest.raises(UsageError, match=r"accelerate\.Accelerator, not a Linear"):
        FusedLocalSGD(torch.nn.Linear(2, 2), accelerator, 4)


def test_a_loop_that_is_switched_off_needs_nothing() -> None:
    with FusedLocalSGD(None, None, None, enabled=False) as local:  # type: ignore[arg-type]
        local.step()
    assert (local.enabled, local.num_steps) == (False, 1)


def test_a_model_that_learns_nothing_is_refused(tmp_path: Path, accelerator: Accelerator) -> None:
    trainer = live.trainer(tmp_path)
    trainer.model.requires_grad_(False)
    with pytest.raises(UsageError, match="Every parameter of this GPT2LMHeadModel is frozen"):
        LocalSGDCallback(4).attach(trainer)
    assert attached_to(trainer) is None
    with pytest.raises(UsageError, match="Every parameter of this GPT2LMHeadModel is frozen"):
        FusedLocalSGD(accelerator, trainer.model, 4)


def test_a_trainer_has_one_callback_and_it_once(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    num_before = len(trainer.callback_handler.callbacks)
    first = LocalSGDCallback(4).attach(trainer)
    with pytest.raises(UsageError, match="is attached to this Trainer already") as caught:
        first.attach(trainer)
    assert caught.value.remedy == "Leave the second attach() out."
    second = LocalSGDCallback(8)
    with pytest.raises(UsageError, match="This Trainer has another LocalSGDCallback") as caught:
        second.attach(trainer)
    assert caught.value.remedy == "Call detach() of that one first."
    assert attached_to(trainer) is first
    assert len(trainer.callback_handler.callbacks) == num_before + 1
    # The second is free still, and takes its place once the first has left.
    first.detach()
    second.attach(trainer)
    assert attached_to(trainer) is second
    first.attach(live.trainer(tmp_path))


def test_one_that_was_added_can_still_be_attached(tmp_path: Path) -> None:
    added = LocalSGDCallback(4)
    trainer = live.trainer(tmp_path, options={"callbacks": [added]})
    num_before = len(trainer.callback_handler.callbacks)
    with pytest.raises(UsageError, match="has another LocalSGDCallback") as caught:
        LocalSGDCallback(8).attach(trainer)
    assert "trainer.remove_callback(LocalSGDCallback)" in str(caught.value.remedy)
    added.attach(trainer)
    assert attached_to(trainer) is added
    assert len(trainer.callback_handler.callbacks) == num_before
    # And again, where the Trainer was told to let it go.
    trainer.remove_callback(added)
    assert attached_to(trainer) is None
    added.attach(trainer)
    assert attached_to(trainer) is added


def test_a_callback_serves_one_trainer(tmp_path: Path) -> None:
    trainer, other = live.trainer(tmp_path), live.trainer(tmp_path)
    callback = LocalSGDCallback(4).attach(trainer)
    with pytest.raises(UsageError, match="serves another Trainer"):
        callback.attach(other)
    callback.detach()
    callback.attach(other)
    assert attached_to(trainer) is None


def test_only_a_trainer_takes_it() -> None:
    with pytest.raises(UsageError, match="A GPT2LMHeadModel is no Trainer"):
        LocalSGDCallback(4).attach(live.gpt2())


def test_one_rank_is_told_once_that_nothing_is_done(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path, max_steps=2)
    callback = LocalSGDCallback(2).attach(trainer)
    averages_tokens = getattr(trainer.args, "average_tokens_across_devices", None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer.train()
        trainer.train()
    ours = [warning for warning in told if "autotune" in str(warning.message)]
    assert [str(warning.message) for warning in ours] == [
        "autotune: local SGD does nothing on one rank; start the job on several, as torchrun does."
    ]
    assert ours[0].filename == __file__, "the line that calls train(), not one of a library"
    assert getattr(trainer.args, "average_tokens_across_devices", None) == averages_tokens
    callback.average()


def test_it_has_to_be_attached(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path, max_steps=1, options={"callbacks": [LocalSGDCallback(2)]})
    with pytest.raises(UsageError, match="was not attached"):
        trainer.train()


def test_taking_it_off_twice_does_no_harm(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    callback = LocalSGDCallback(2).attach(trainer)
    trainer.add_callback(TrainerCallback())
    callback.detach()
    callback.detach()
    assert attached_to(trainer) is None


def test_batch_norm_is_told_of_by_the_first_rank_at_the_users_line() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn_of_batch_norm(model, is_first=False)
        assert told == []
        warn_of_batch_norm(model, is_first=True)
    assert [warning.filename for warning in told] == [__file__]
