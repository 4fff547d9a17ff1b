"""Weights are those of the files, new ones follow the seed, and what does not fit is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from autotune.errors import UsageError, WorkloadError
from autotune.workload.spec import Columns, Lora, WorkloadSpec
from tests.autotune.workload.conftest import Load, config_of, write_csv
from tests.testing import tiny_models
from tests.testing.tiny_models import LABELS, TEXTS


@pytest.fixture
def reviews(tmp_path: Path) -> str:
    return write_csv(tmp_path / "d.csv", ("text", "label"), zip(TEXTS, LABELS, strict=True))


@pytest.fixture
def save(bert: str, tmp_path: Path) -> Callable[..., str]:
    """Saves a BERT with a head, and with its tokenizer."""

    def call(model_class: Any, dtype: torch.dtype = torch.float32, **config: object) -> str:
        directory = tiny_models.bert(tmp_path / "saved")
        transformers.set_seed(3)
        found = transformers.AutoConfig.from_pretrained(bert, **config)
        model_class(found).to(dtype).save_pretrained(directory)
        return str(directory)

    return call


def classify(model: str, dataset: str) -> WorkloadSpec:
    return WorkloadSpec(task="sequence-classification", model=model, dataset=dataset)


def test_a_new_head_follows_the_seed_and_the_body_the_files(
    save: Callable[..., str], reviews: str, load_here: Load
) -> None:
    spec = classify(save(transformers.BertModel), reviews)
    first, again, other = (load_here(replace(spec, seed=seed)) for seed in (1, 1, 2))
    assert first.facts.notes[0] == "New weights, drawn with the seed: classifier."
    weights = [loaded.model.state_dict() for loaded in (first, again, other)]
    assert torch.equal(weights[0]["classifier.weight"], weights[1]["classifier.weight"])
    assert not torch.equal(weights[0]["classifier.weight"], weights[2]["classifier.weight"])
    body = transformers.BertModel.from_pretrained(spec.model).state_dict()
    for name, value in body.items():
        assert torch.equal(weights[2][f"bert.{name}"], value), name
    assert first.model.training


def test_a_head_of_another_size_is_drawn_anew(
    save: Callable[..., str], reviews: str, load_here: Load
) -> None:
    saved = save(transformers.BertForSequenceClassification, num_labels=5)
    loaded = load_here(classify(saved, reviews))
    assert loaded.model.state_dict()["classifier.weight"].shape == (2, 16)
    assert "classifier" in loaded.facts.notes[0]


def test_weights_of_half_precision_are_trained_in_full(
    save: Callable[..., str], reviews: str, load_here: Load
) -> None:
    saved = save(transformers.BertForSequenceClassification, torch.bfloat16)
    assert '"bfloat16"' in (Path(saved) / "config.json").read_text()
    loaded = load_here(classify(saved, reviews))
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    random = load_here(replace(classify(saved, reviews), model=None, model_config=saved))
    assert {p.dtype for p in random.model.parameters()} == {torch.float32}


def test_weights_of_another_architecture_are_refused(
    save: Callable[..., str], gpt2: str, reviews: str, load_here: Load
) -> None:
    saved = Path(save(transformers.BertModel))
    (saved / "config.json").write_bytes((Path(gpt2) / "config.json").read_bytes())
    with pytest.raises(WorkloadError, match=r"do not belong to its config\.json"):
        load_here(classify(str(saved), reviews))


def test_fields_that_the_model_does_not_take_are_not_made(
    bert: str, tmp_path: Path, reviews: str, load_here: Load
) -> None:
    place = tmp_path / "distil"
    place.mkdir()
    config = {"model_type": "distilbert", "dim": 16, "hidden_dim": 32, "n_heads": 2, "n_layers": 1}
    config |= {"vocab_size": 40, "max_position_embeddings": 32, "pad_token_id": 0}
    (place / "config.json").write_text(json.dumps(config))
    spec = WorkloadSpec(
        task="sequence-classification", model_config=str(place), tokenizer=bert, dataset=reviews
    )
    assert set(load_here(spec).train_dataset[0]) == {"input_ids", "attention_mask", "labels"}


def test_a_table_with_a_padding_row_has_fewer_positions(
    bert: str, tmp_path: Path, reviews: str, load_here: Load
) -> None:
    place = tmp_path / "roberta"
    place.mkdir()
    config = {"model_type": "roberta", "max_position_embeddings": 34, "pad_token_id": 1}
    config |= {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config |= {"num_hidden_layers": 1, "vocab_size": 40, "type_vocab_size": 2}
    (place / "config.json").write_text(json.dumps(config))
    spec = WorkloadSpec(
        task="sequence-classification", model_config=str(place), tokenizer=bert, dataset=reviews
    )
    loaded = load_here(spec)
    assert loaded.facts.chosen is not None
    assert loaded.facts.chosen.max_length == 32
    with pytest.raises(WorkloadError, match="positions for 32 tokens"):
        load_here(replace(spec, max_length=33))


def test_rotary_positions_go_beyond_what_the_model_was_made_for(
    gpt2: str, tmp_path: Path, reviews: str, load_here: Load
) -> None:
    place = tmp_path / "llama"
    place.mkdir()
    config = {"model_type": "llama", "max_position_embeddings": 8, "vocab_size": 40}
    config |= {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    (place / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    spec = WorkloadSpec(
        task="causal-lm", model_config=str(place), tokenizer=gpt2, dataset=reviews, max_length=12
    )
    assert any("beyond the 8" in note for note in load_here(spec).facts.notes)
    assert max(len(r["input_ids"]) for r in load_here(spec).longest_rows(1)) == 9  # type: ignore[arg-type]


def test_batch_norm_and_losses_over_the_batch_are_reported(
    gpt2: str, tmp_path: Path, reviews: str, load_here: Load
) -> None:
    place = tmp_path / "mixtral"
    place.mkdir()
    config = {"model_type": "mixtral", "vocab_size": 40, "hidden_size": 16, "head_dim": 8}
    config |= {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    config |= {"num_hidden_layers": 1, "num_local_experts": 2, "output_router_logits": True}
    (place / "config.json").write_text(json.dumps(config))
    spec = WorkloadSpec(
        task="causal-lm", model_config=str(place), tokenizer=gpt2, dataset=reviews, max_length=12
    )
    facts = load_here(spec).facts
    assert facts.batch_dependent_loss is not None
    assert "experts" in facts.batch_dependent_loss
    assert not facts.has_batch_norm


# peft still asks transformers by a name that has since been renamed.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
def test_lora_trains_adapters_and_a_new_head_only(
    save: Callable[..., str], reviews: str, load_here: Load
) -> None:
    spec = replace(classify(save(transformers.BertModel), reviews), lora=Lora(rank=2, alpha=4))
    loaded = load_here(spec)
    trained = {name for name, p in loaded.model.named_parameters() if p.requires_grad}
    assert all("lora_" in name or "classifier" in name for name in trained)
    # Query and value of two layers, each with 2×16 and 16×2 numbers, and a head of 2×16+2.
    assert loaded.facts.num_trainable_parameters == 2 * 2 * 2 * (2 * 16) + 34
    assert dict(loaded.facts.versions)["peft"]
    with torch.no_grad():
        loss = loaded.model(**loaded.data_collator(loaded.typical_rows(2))).loss
    assert torch.isfinite(loss)


def test_lora_on_layers_that_are_not_there(
    save: Callable[..., str], reviews: str, load_here: Load
) -> None:
    spec = classify(save(transformers.BertModel), reviews)
    with pytest.raises(UsageError) as caught:
        load_here(replace(spec, lora=Lora(rank=2, target_modules=("q_proj",))))
    assert caught.value.cause == "The model has no layers called q_proj."
    assert "query" in str(caught.value.remedy)


def test_lora_without_peft(
    save: Callable[..., str], reviews: str, load_here: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(classify(save(transformers.BertModel), reviews), lora=Lora(rank=2))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs the package peft.*pip install peft"):
        load_here(spec)


def test_what_was_chosen_is_a_complete_spec(
    save: Callable[..., str], reviews: str, load_here: Load
) -> None:
    facts = load_here(classify(save(transformers.BertModel), reviews)).facts
    chosen = facts.chosen
    assert chosen is not None
    assert chosen.columns == Columns(text="text", label="label")
    assert chosen.max_length == 32
    default = transformers.TrainingArguments(output_dir="unused").optim
    assert chosen.optim == facts.optim == default.value
    assert config_of(load_here(chosen)).num_labels == 2
