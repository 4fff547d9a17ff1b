"""A deep model traced through a few of its layers, against all of them one by one."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

from autotune.configuration import NO_CHECKPOINTING, Checkpointing
from autotune.cost.memory.trace import TracedWorkload
from autotune.tracing import depth
from autotune.tracing.depth import fold_of, folded
from autotune.tracing.request import ALL_FORMS, Target
from tests.autotune.export.jobs import quiet
from tests.testing.memory_jobs import Job

EVERY_LAYER = Checkpointing(every_n_layers=1)
EVERY_THIRD = (Checkpointing(every_n_layers=3),)
CUDA = Target(kind="cuda", capability=(8, 9))


@pytest.fixture(autouse=True)
def _any_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single group of layers is worth being spared."""
    monkeypatch.setattr(depth, "LEAST_SPARED", 1)


def both(job: Job, *forms: Checkpointing, target: Target) -> tuple[TracedWorkload, TracedWorkload]:
    """Through a few of the layers, and through all."""
    with quiet():
        short, whole = (
            job.trace(forms=forms, target=target, folds_layers=folds, with_evaluation=False)
            for folds in (True, False)
        )
    return short, whole


@pytest.mark.parametrize(
    ("job", "forms", "target"),
    [
        (Job(family="GPT-2", dropout=True, padded=True, num_layers=13), EVERY_THIRD, Target()),
        (
            Job(family="Llama with GQA", precision="bf16", lora=True, num_layers=9),
            (NO_CHECKPOINTING, EVERY_LAYER),
            CUDA,
        ),
        (
            Job(family="BERT", optim="adamw_torch", padded=True, num_layers=10),
            (Checkpointing(every_n_layers=2),),
            CUDA,
        ),
        (
            Job(family="GPT-2", driver="accelerate", optim="adamw_torch", num_layers=8),
            (NO_CHECKPOINTING,),
            Target(),
        ),
    ],
    ids=str,
)
def test_the_trace_is_the_same_to_the_last_event(
    job: Job,
    forms: tuple[Checkpointing, ...],
    target: Target,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="autotune.tracing.trace")
    with quiet():
        model = job.load().model
    assert all(fold_of(model, form) is not None for form in forms)
    short, whole = both(job, *forms, target=target)
    assert not [record for record in caplog.records if "one by one" in record.message]
    assert not whole.untraced
    assert short.steps == whole.steps


def test_layers_that_turn_out_to_be_unequal_are_traced_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = GPT2Attention.forward

    def forward(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        if self.layer_idx == 5:
            hidden_states = hidden_states * 1.0
        return real(self, hidden_states, *args, **kwargs)

    monkeypatch.setattr(GPT2Attention, "forward", forward)
    caplog.set_level(logging.DEBUG, logger="autotune.tracing.trace")
    short, whole = both(Job(family="GPT-2", num_layers=8), NO_CHECKPOINTING, target=Target())
    assert ["layers 2 and 3" in r.message for r in caplog.records] == [True]
    assert short.steps == whole.steps


def test_a_layer_that_is_not_like_the_others_is_not_spared() -> None:
    model: Any = Job(family="GPT-2", num_layers=12).load().model
    fold = fold_of(model, NO_CHECKPOINTING)
    assert fold is not None
    assert (fold.path, fold.first, fold.unit, fold.num_copies) == ("transformer.h", 2, 1, 6)
    with folded(model, fold):
        assert len(model.transformer.h) == 6
        assert [layer.attn.layer_idx for layer in model.transformer.h] == [0, 1, 2, 9, 10, 11]
    assert len(model.transformer.h) == 12
    model.transformer.h[7].mlp.dropout = nn.Identity()
    assert fold_of(model, NO_CHECKPOINTING) is None


def test_what_a_model_hooks_in_its_first_pass_goes_with_the_short_stack() -> None:
    model: Any = Job(family="GPT-2", num_layers=12).load().model
    first = model.transformer.h[0]
    kept = first.register_forward_hook(lambda *_: None)
    with folded(model, fold_of(model, NO_CHECKPOINTING) or pytest.fail("nothing is spared")):
        for layer in model.transformer.h:
            layer.register_forward_hook(lambda *_: None)
        model.transformer.is_hooked = True
    assert [len(layer._forward_hooks) for layer in model.transformer.h] == [1, *[0] * 11]
    assert not hasattr(model.transformer, "is_hooked")
    kept.remove()
    assert not first._forward_hooks


def test_kinds_of_layers_that_take_turns_are_spared_in_whole_turns() -> None:
    model = Gemma2ForCausalLM(
        Gemma2Config(
            num_hidden_layers=22,
            hidden_size=16,
            intermediate_size=16,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            vocab_size=32,
        )
    )
    units = {form: fold_of(model, form) for form in ALL_FORMS}
    assert [fold and fold.unit for fold in units.values()] == [2, 6, 2, 2]
    for fold in units.values():
        assert fold is not None
        assert fold.num_spared % fold.unit == 0
        assert [fold.whole(n) for n in (0, fold.second)] == [0, fold.second + fold.num_spared]
