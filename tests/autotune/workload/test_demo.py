"""The demo is an ordinary job once it is written out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from autotune.workload.load import load
from autotune.workload.resolve import resolve_spec
from autotune.workload.spec import WorkloadSpec

DEMO = WorkloadSpec(task="causal-lm", demo=True)


def test_the_demo_is_written_out_as_an_ordinary_job(tmp_path: Path) -> None:
    spec = resolve_spec(DEMO, tmp_path, Path.cwd())
    assert (spec.demo, spec.task, spec.name) == (True, "causal-lm", "demo")
    assert spec.model is None
    assert spec.model_config == spec.tokenizer == str(tmp_path / "demo-model")
    assert spec.dataset == str(tmp_path / "demo.jsonl")
    lines = Path(spec.dataset).read_text(encoding="utf-8").splitlines()
    assert len(lines) > 1000
    assert all(json.loads(line)["text"].strip() for line in lines)
    # The same job without the word demo loads to the same weights, rows and batches.
    ordinary = load(replace(spec, demo=False), tmp_path / "b", tmp_path)
    loaded = load(DEMO, tmp_path, tmp_path)
    assert loaded.typical_rows(64) == ordinary.typical_rows(64)
    weights = ordinary.model.state_dict()
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, weights[name]), name


def test_the_demo_is_small_and_has_samples_of_many_lengths(tmp_path: Path) -> None:
    loaded = load(DEMO, tmp_path, tmp_path)
    assert loaded.facts.name == "demo"
    assert 500_000 < loaded.facts.num_parameters < 3_000_000
    assert loaded.facts.tokens_max == 64
    assert loaded.facts.tokens_median is not None
    assert 20 < loaded.facts.tokens_median < 64
    assert loaded.facts.parameter_bytes == 4 * loaded.facts.num_parameters
    batch = loaded.data_collator(loaded.longest_rows(4))
    assert batch["input_ids"].shape == (4, 64)
    assert int(batch["input_ids"].max()) < loaded.model.config.vocab_size  # type: ignore[operator, union-attr]


def test_the_same_demo_in_another_place_has_the_same_digest(tmp_path: Path) -> None:
    here, there = load(DEMO, tmp_path / "a", tmp_path), load(DEMO, tmp_path / "b", tmp_path)
    assert here.facts.digest == there.facts.digest


def test_the_demo_reads_back_what_its_tokenizer_wrote(tmp_path: Path) -> None:
    loaded = load(DEMO, tmp_path, tmp_path)
    tokenizer = loaded.processing_class
    text = "The with statement is used to wrap the execution of a block.\n\n  >>> x = 1"
    ids = tokenizer(text)["input_ids"]  # type: ignore[operator, misc]
    assert tokenizer.decode(ids) == text  # type: ignore[union-attr]
