"""Attaching, on one rank."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from transformers import TrainerCallback

from autotune import LocalSGDCallback
from autotune.errors import UsageError
from autotune.runtime.callback import attached_to
from tests.testing import live


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"local_sgd_steps": 1}, "cannot average every 1 optimizer step"),
        ({"local_sgd_steps": 0}, "cannot average every 0 optimizer step"),
        ({"ddp_steps": -1}, "no -1 first steps"),
        ({"qsr_alpha": 0.0}, "cannot be compared with 0.0"),
        ({"qsr_alpha": float("inf")}, "cannot be compared with inf"),
        ({"qsr_alpha": float("nan")}, "cannot be compared with nan"),
    ],
)
def test_numbers_that_cannot_work_are_refused(values: dict[str, float], cause: str) -> None:
    with pytest.raises(UsageError, match=cause) as caught:
        LocalSGDCallback(**values)  # type: ignore[arg-type]
    assert caught.value.remedy


def test_a_second_callback_takes_the_place_of_the_first(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    num_before = len(trainer.callback_handler.callbacks)
    first = LocalSGDCallback(4).attach(trainer)
    assert attached_to(trainer) is first
    second = LocalSGDCallback(8).attach(trainer).attach(trainer)
    assert attached_to(trainer) is second
    assert len(trainer.callback_handler.callbacks) == num_before + 1
    # The first is free again.
    first.attach(live.trainer(tmp_path))


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
    texts = [str(warning.message) for warning in told if "autotune" in str(warning.message)]
    assert texts == [
        "autotune: local SGD does nothing on one rank; start the job on several, as torchrun does."
    ]
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
