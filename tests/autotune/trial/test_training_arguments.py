"""The knobs in the names of the installed version, and its switch for checkpointing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import TrainingArguments

from autotune.configuration import NO_CHECKPOINTING, Checkpointing, Configuration
from autotune.trial import training_arguments as arguments_module
from autotune.trial.training_arguments import (
    checkpointing_kwargs,
    knob_fields,
    set_checkpointing,
    supported_checkpointing,
    training_arguments,
)
from tests.autotune.export.jobs import quiet
from tests.autotune.trial import workloads
from tests.autotune.trial.models import needs_every_n

FIELD_NAMES = {field.name for field in fields(TrainingArguments)}
SWITCH = "activation" if "activation_checkpointing" in FIELD_NAMES else "gradient"


def test_fields_are_those_of_the_installed_version(tmp_path: Path) -> None:
    configuration = Configuration(
        micro_batch_size=4,
        accumulation_steps=3,
        checkpointing=Checkpointing(every_n_layers=2),
    )
    values = knob_fields(configuration)
    assert values == {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 3,
        f"{SWITCH}_checkpointing": True,
        f"{SWITCH}_checkpointing_kwargs": {"use_reentrant": False, "every_n_layers": 2},
    }
    with quiet():
        arguments: Any = TrainingArguments(output_dir=str(tmp_path), **values)
    assert getattr(arguments, f"{SWITCH}_checkpointing") is True


def test_off_is_said_explicitly() -> None:
    values = knob_fields(Configuration(micro_batch_size=1, accumulation_steps=1))
    assert values[f"{SWITCH}_checkpointing"] is False
    assert f"{SWITCH}_checkpointing_kwargs" not in values


@pytest.mark.parametrize(
    ("checkpointing", "meant"),
    [
        (Checkpointing(every_n_layers=1), {"use_reentrant": False}),
        (Checkpointing(every_n_layers=3), {"use_reentrant": False, "every_n_layers": 3}),
        (
            Checkpointing(every_n_layers=1, offload=True),
            {"use_reentrant": False, "offload": True},
        ),
    ],
    ids=str,
)
def test_defaults_are_left_out_of_the_dictionary(
    checkpointing: Checkpointing, meant: Mapping[str, object]
) -> None:
    assert checkpointing_kwargs(checkpointing) == meant


def test_trials_write_nothing_and_keep_what_the_workload_says(tmp_path: Path) -> None:
    workload = replace(
        workloads.around(nn.Linear(2, 2), [{"x": 1}]),
        arguments={"learning_rate": 0.25, "optim": "sgd", "save_strategy": "steps", "seed": 9},
    )
    made: Any = training_arguments(
        workload, Configuration(micro_batch_size=3, accumulation_steps=5), str(tmp_path / "out")
    )
    assert (made.learning_rate, made.optim, made.seed) == (0.25, "sgd", 9)
    assert (made.per_device_train_batch_size, made.gradient_accumulation_steps) == (3, 5)
    assert (made.save_strategy, made.eval_strategy, made.logging_strategy) == ("no", "no", "no")
    assert made.report_to in ([], ["none"], "none")


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_bf16_is_allowed_where_there_is_no_accelerator(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr(arguments_module, "current_device", lambda: torch.device(kind))
    monkeypatch.setattr(arguments_module, "TrainingArguments", _Recording(given))
    workload = workloads.around(nn.Linear(2, 2), [{"x": 1}], arguments={"bf16": True})
    training_arguments(
        workload, Configuration(micro_batch_size=1, accumulation_steps=1), str(tmp_path)
    )
    assert given.get("use_cpu", False) is (kind == "cpu")


class _Recording:
    """Stands in for TrainingArguments and keeps what it is made with."""

    __dataclass_fields__ = TrainingArguments.__dataclass_fields__

    def __init__(self, given: dict[str, object]) -> None:
        self._given = given

    def __call__(self, **values: object) -> None:
        self._given.update(values)


class New(nn.Module):
    """The switch as new versions have it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []

    def activation_checkpointing_enable(
        self,
        activation_checkpointing_kwargs: object = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        self.calls.append((activation_checkpointing_kwargs, every_n_layers, offload))

    def activation_checkpointing_disable(self) -> None:
        self.calls.append("off")


class Old(nn.Module):
    """The switch as versions before had it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: object = None) -> None:
        self.calls.append(gradient_checkpointing_kwargs)

    def gradient_checkpointing_disable(self) -> None:
        self.calls.append("off")


def test_the_switch_is_called_by_its_name_on_the_model() -> None:
    new, old = New(), Old()
    set_checkpointing(new, Checkpointing(every_n_layers=2, offload=True))
    set_checkpointing(old, Checkpointing(every_n_layers=1))
    assert new.calls == ["off", ({"use_reentrant": False}, 2, True)]
    assert old.calls == ["off", {"use_reentrant": False}]
    set_checkpointing(old, NO_CHECKPOINTING)
    assert old.calls[2:] == ["off"]


def test_what_the_switch_takes_is_read_off_it() -> None:
    assert supported_checkpointing(New()) == {"every_n_layers": True, "offload": True}
    assert supported_checkpointing(Old()) == {"every_n_layers": False, "offload": False}
    assert supported_checkpointing(nn.Linear(1, 1)) == {}


def test_a_model_without_the_switch_can_only_be_left_alone() -> None:
    model = nn.Linear(1, 1)
    set_checkpointing(model, NO_CHECKPOINTING)
    with pytest.raises(AttributeError, match="Linear has no switch for checkpointing"):
        set_checkpointing(model, Checkpointing(every_n_layers=1))


@pytest.mark.parametrize(
    ("every_n_layers", "meant"),
    [
        (None, "...."),
        (1, "xxxx"),
        pytest.param(2, "x.x.", marks=needs_every_n),
        pytest.param(3, "x..x", marks=needs_every_n),
    ],
)
def test_layers_are_switched_on_a_real_model(
    tmp_path: Path, every_n_layers: int | None, meant: str
) -> None:
    workload = workloads.loaded(workloads.causal_spec(tmp_path, 4, num_layers=4), tmp_path)
    model: Any = workload.model
    # What an earlier trial left on must not stay on.
    set_checkpointing(model, Checkpointing(every_n_layers=1))
    set_checkpointing(model, Checkpointing(every_n_layers=every_n_layers))
    switched = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
    assert bool(switched) is (every_n_layers is not None)
    if not supported_checkpointing(model)["every_n_layers"]:
        return
    layers = model.transformer.h
    assert "".join("x" if layer.gradient_checkpointing else "." for layer in layers) == meant
