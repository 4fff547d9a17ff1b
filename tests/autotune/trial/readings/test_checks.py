"""Loss parity on models where it holds and fails; checkpointing on models of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from autotune.outcome import OutOfMemory
from autotune.search.parity import judge_parity
from autotune.trial.failure import outcome_of
from autotune.trial.protocol import CheckpointingTried, ParityFound
from autotune.trial.readings.checks import check_parity, split, try_checkpointing, without_dropout
from autotune.trial.stepper import Driver
from autotune.trial.training_arguments import supported_checkpointing
from autotune.workload.facts import CheckpointingForm
from autotune.workload.loaded import LoadedWorkload
from autotune.workload.spec import WorkloadSpec
from tests.autotune.export import jobs
from tests.autotune.export.jobs import quiet
from tests.autotune.trial import models, workloads
from tests.autotune.trial.models import needs_every_n
from tests.testing import tiny_models

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    pytest.mark.filterwarnings("ignore:.*torch.cpu.amp.autocast"),
]

DRIVERS: tuple[Driver, ...] = ("trainer", "accelerate")
NO_SAVING = "no saving measured: the model accepts the switch and keeps as much as before"


def parity(
    workload: LoadedWorkload, place: Path, *, driver: Driver = "trainer", accumulation: int = 4
) -> ParityFound:
    with quiet():
        return check_parity(
            workload,
            num_rows=8,
            accumulation_steps=accumulation,
            driver=driver,
            output_dir=str(place / "output"),
        )


def tried(
    workload: LoadedWorkload, place: Path, *, driver: Driver = "trainer"
) -> CheckpointingTried:
    with quiet():
        return try_checkpointing(
            workload, (3, 2, 1), driver=driver, output_dir=str(place / "output")
        )


def by_n(found: CheckpointingTried) -> dict[int, CheckpointingForm]:
    return {form.every_n_layers: form for form in found.forms}


@pytest.mark.parametrize("accumulation", [2, 4, 8])
def test_a_bert_classifier_trains_otherwise_when_split_until_it_is_repaired(
    tmp_path: Path, accumulation: int
) -> None:
    workload = workloads.loaded(workloads.classifier_spec(tmp_path, 12), tmp_path)
    found = parity(workload, tmp_path, accumulation=accumulation)
    whole, in_parts = found.losses
    if judge_parity(found, 8, 4).holds:
        pytest.skip("the installed version counts what this loss is a mean of")
    assert in_parts == pytest.approx(accumulation * whole, rel=1e-5)
    assert found.gradient_norms[1] == pytest.approx(
        accumulation * found.gradient_norms[0], rel=1e-4
    )
    assert found.repaired_losses is not None
    assert found.repaired_losses == pytest.approx((whole, whole), rel=1e-5)
    norm = found.gradient_norms[0]
    assert found.repaired_gradient_norms == pytest.approx((norm, norm), rel=1e-4)
    judged = judge_parity(found, 8, 4)
    assert (judged.holds, judged.repaired) == (False, True)


def test_a_gpt2_trains_the_same_when_split(tmp_path: Path) -> None:
    workload = workloads.loaded(workloads.causal_spec(tmp_path, 12), tmp_path)
    found = parity(workload, tmp_path)
    assert found.losses[1] == pytest.approx(found.losses[0], rel=1e-5)
    assert found.gradient_norms[1] == pytest.approx(found.gradient_norms[0], rel=1e-4)
    assert found.losses[0] > 0.5
    assert found.gradient_norms[0] > 0.01
    assert judge_parity(found, 8, 4).holds
    assert found.unused_parameters == ()


@pytest.mark.parametrize("driver", DRIVERS)
def test_parameters_that_get_no_gradient_are_named(tmp_path: Path, driver: Driver) -> None:
    spec = workloads.causal_spec(tmp_path, 12)
    config = Path(spec.model_config or "") / "config.json"
    # These layers look at an encoder, and there is none.
    config.write_text(json.dumps({**json.loads(config.read_text()), "add_cross_attention": True}))
    found = parity(workloads.loaded(spec, tmp_path), tmp_path, driver=driver)
    parts = {name.split(".")[3] for name in found.unused_parameters}
    assert parts == {"crossattention", "ln_cross_attn"}
    assert judge_parity(found, 8, 4).holds


LOSSES = (jobs.classify, jobs.causal, jobs.tag, jobs.translate)
"""A job for each thing that losses are means of: rows, shifted tokens, tokens, their targets."""


@pytest.mark.parametrize("kind", LOSSES, ids=lambda kind: kind.__name__)
def test_the_plain_loop_trains_the_same_when_split(
    tmp_path: Path, kind: Callable[[Path], WorkloadSpec]
) -> None:
    found = parity(jobs.make(kind, tmp_path).workload, tmp_path, driver="accelerate")
    assert judge_parity(found, 8, 4).holds
    assert found.repaired_losses is None
    assert found.gradient_norms[0] > 1e-3


@pytest.mark.parametrize("driver", DRIVERS)
def test_parity_is_checked_in_full_precision(tmp_path: Path, driver: Driver) -> None:
    spec = workloads.causal_spec(tmp_path, 12, family="llama")
    whole = workloads.loaded(spec, tmp_path)
    half = workloads.loaded(spec, tmp_path)
    half.model.bfloat16()
    whole.model.load_state_dict(half.model.state_dict())
    meant = parity(whole, tmp_path, driver=driver)
    half = replace(half, arguments={**half.arguments, "bf16": True})
    found = parity(half, tmp_path, driver=driver)
    assert found.losses == pytest.approx(meant.losses, rel=1e-6)
    assert judge_parity(found, 8, 4).holds


class Dropping(nn.Module):
    """Its loss would differ from pass to pass, were dropout on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = models.layers(2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        return self.inner(self.dropout(x), labels)


def test_dropout_is_off_and_comes_back(tmp_path: Path) -> None:
    model = Dropping()
    found = parity(workloads.around(model, models.float_rows(8)), tmp_path)
    assert found.losses[1] == pytest.approx(found.losses[0], rel=1e-5)
    assert model.training
    assert "train" not in vars(model)
    assert all(p.grad is None for p in model.parameters())


def test_the_model_stays_in_evaluation_whatever_asks_otherwise() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Linear(1, 1))
    with without_dropout(model):
        model.train()
        assert not model.training
        assert not model[0].training
    assert model[0].training


def test_batches_are_split_by_rows() -> None:
    batch = {"x": torch.arange(12).reshape(6, 2), "scale": torch.tensor(3)}
    parts = split(batch, 3)
    assert [part["x"].tolist() for part in parts] == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
        [[8, 9], [10, 11]],
    ]
    assert [int(part["scale"]) for part in parts] == [3, 3, 3]
    assert [len(part["x"]) for part in split({"x": torch.zeros(5)}, 4)] == [2, 1, 1, 1]


def saved_for_backward(model: nn.Module, rows: int = 2) -> int:
    """Bytes that autograd keeps, counted by its own hooks."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    workload = workloads.around(model, models.float_rows(rows))
    batch = workload.data_collator(workload.typical_rows(rows))
    inputs = {t.untyped_storage().data_ptr() for t in batch.values()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(**batch)["loss"]
        total = sum(n for pointer, n in kept.items() if pointer not in parameters | inputs)
    del loss
    return total


@needs_every_n
def test_a_model_that_obeys_saves_layer_by_layer(tmp_path: Path) -> None:
    model = models.layers(6)
    workload = workloads.around(model, models.float_rows(8))
    found = tried(workload, tmp_path)
    assert found.saved_bytes_without == pytest.approx(saved_for_backward(model), rel=0.02)
    forms = by_n(found)
    kept = {n: form.saved_bytes for n, form in forms.items()}
    assert kept[1] is not None
    assert kept[2] is not None
    assert kept[3] is not None
    assert kept[1] < kept[2] < kept[3] < found.saved_bytes_without
    assert all(form.is_available and form.reason is None for form in forms.values())
    # Tanh of 4 x 48 floats a row is what a layer keeps beyond its input.
    assert kept[1] < 0.3 * found.saved_bytes_without
    assert not any(block.gradient_checkpointing for block in model.blocks)


def test_a_model_without_support_says_so_and_is_left_alone(tmp_path: Path) -> None:
    model = models.recurrent()
    found = tried(workloads.around(model, models.token_rows(8), task="causal-lm"), tmp_path)
    assert found.saved_bytes_without > 0
    for form in by_n(found).values():
        assert (form.is_available, form.saved_bytes) == (False, None)
        assert form.reason is not None
        assert "checkpoint" in form.reason
    reason = by_n(found)[1].reason
    assert reason is not None
    assert "Recurrent does not support" in reason


def test_a_bare_module_has_no_switch(tmp_path: Path) -> None:
    found = tried(workloads.around(models.Bare(), models.token_rows(8)), tmp_path)
    assert [form.is_available for form in found.forms] == [False] * 3
    assert {form.reason for form in found.forms} == {"the model has no switch for checkpointing"}


@needs_every_n
def test_a_switch_without_effect_is_measured_and_not_believed(tmp_path: Path) -> None:
    found = tried(workloads.around(models.layers(6, obeys=False), models.float_rows(8)), tmp_path)
    for form in found.forms:
        assert form.is_available
        assert form.saved_bytes == found.saved_bytes_without
        assert form.reason == NO_SAVING


@needs_every_n
def test_forms_that_are_the_same_on_two_layers_are_tried_once(tmp_path: Path) -> None:
    forms = by_n(tried(workloads.around(models.layers(2), models.float_rows(8)), tmp_path))
    assert [forms[n].reason for n in (1, 2)] == [None, None]
    assert forms[3].saved_bytes == forms[2].saved_bytes
    assert forms[3].reason == "on this model it is the same as checkpointing every 2nd layer"


@needs_every_n
def test_on_one_layer_all_forms_are_every_layer(tmp_path: Path) -> None:
    forms = by_n(tried(workloads.around(models.layers(1), models.float_rows(8)), tmp_path))
    assert forms[1].reason is None
    same = "on this model it is the same as checkpointing every layer"
    assert (forms[2].reason, forms[3].reason) == (same, same)


@needs_every_n
def test_where_logits_are_nearly_all_checkpointing_is_of_no_use(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=60_000,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    rows = models.token_rows(4, length=12, vocabulary=60_000)
    found = tried(workloads.around(LlamaForCausalLM(config), rows, task="causal-lm"), tmp_path)
    # What the loss keeps of the logits, in single precision.
    assert found.saved_bytes_without > 2 * 12 * 60_000 * 4
    for form in found.forms:
        assert form.is_available
        assert form.reason is not None
        assert form.reason.startswith(("it saves only", "no saving measured"))


@needs_every_n
def test_a_form_that_fails_is_left_out_alone(tmp_path: Path) -> None:
    model = models.failing(RuntimeError("recomputed tensors differ\nin detail"))
    forms = by_n(tried(workloads.around(model, models.float_rows(8)), tmp_path))
    assert (forms[1].is_available, forms[1].saved_bytes) == (False, None)
    assert forms[1].reason == "RuntimeError: recomputed tensors differ"
    assert forms[2].is_available
    assert forms[2].reason is None


def test_running_out_of_memory_is_no_refusal(tmp_path: Path) -> None:
    model = models.failing(MemoryError("no more"))
    with pytest.raises(MemoryError) as caught:
        tried(workloads.around(model, models.float_rows(8)), tmp_path)
    assert isinstance(outcome_of(caught.value), OutOfMemory)


@pytest.mark.parametrize("driver", DRIVERS)
def test_real_models_save_in_both_loops(tmp_path: Path, driver: Driver) -> None:
    workload = workloads.loaded(workloads.causal_spec(tmp_path, 8, num_layers=4), tmp_path)
    found = tried(workload, tmp_path, driver=driver)
    forms = by_n(found)
    assert forms[1].reason is None
    assert forms[1].saved_bytes is not None
    assert forms[1].saved_bytes < found.saved_bytes_without
    if supported_checkpointing(workload.model)["every_n_layers"]:
        assert forms[2].is_available
    else:
        assert forms[2].reason == "the installed transformers checkpoints every layer or none"


def test_a_model_that_cannot_pad_is_tried_with_one_row(tmp_path: Path) -> None:
    spec = workloads.classifier_spec(tmp_path, 8)
    model = tiny_models.gpt2(tmp_path / "gpt2")
    with quiet():
        workload = workloads.loaded(replace(spec, model_config=str(model)), tmp_path)
    forms = by_n(tried(workload, tmp_path))
    assert forms[1].is_available
    assert forms[1].reason is None
