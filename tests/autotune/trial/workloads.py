"""Small jobs whose rows can be told apart, and workloads around models made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch

from autotune.trial.stepper import Stepper
from autotune.workload.facts import WorkloadFacts
from autotune.workload.load import load
from autotune.workload.loaded import Batch, LoadedWorkload, Row, repeat_to
from autotune.workload.spec import Task, WorkloadSpec
from tests.autotune.export import jobs
from tests.testing import tiny_models

Tokens = tuple[int, ...]


def texts(num_rows: int) -> list[str]:
    """Texts of two to six words, no two of which are the same."""
    words = tiny_models.WORDS
    return [" ".join([words[i % len(words)]] * (2 + i % 5)) for i in range(num_rows)]


def causal_spec(
    place: Path,
    num_rows: int,
    *,
    family: Literal["gpt2", "llama"] = "gpt2",
    streaming: bool = False,
    optim: str | None = None,
    num_layers: int = 2,
    width: int = 16,
) -> WorkloadSpec:
    """A decoder without dropout."""
    data = jobs.write_jsonl(place / "rows.jsonl", [{"text": text} for text in texts(num_rows)])
    model = jobs.without_dropout(tiny_models.gpt2(place / "model", with_pad=True))
    file = model / "config.json"
    config = json.loads(file.read_text())
    if family == "gpt2":
        config |= {"n_layer": num_layers, "n_embd": width}
    else:
        config = {
            "model_type": "llama",
            "num_hidden_layers": num_layers,
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_attention_heads": 2,
            **{name: config[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")},
        }
    file.write_text(json.dumps(config))
    return WorkloadSpec(
        task="causal-lm",
        model_config=str(model),
        dataset=data,
        learning_rate=1e-2,
        optim=optim,
        streaming=streaming,
        seed=7,
    )


def classifier_spec(place: Path, num_rows: int) -> WorkloadSpec:
    """A BERT of two layers without dropout."""
    labels = ["yes" if i % 3 else "no" for i in range(num_rows)]
    data = jobs.write_csv(place / "rows.csv", {"text": texts(num_rows), "label": labels})
    model = jobs.without_dropout(tiny_models.bert(place / "bert"))
    return WorkloadSpec(task="sequence-classification", model_config=str(model), dataset=data)


def loaded(spec: WorkloadSpec, place: Path) -> LoadedWorkload:
    """The workload of a spec."""
    with jobs.quiet():
        return load(spec, place / "scratch", place)


def around(
    model: torch.nn.Module,
    rows: Sequence[Row],
    *,
    task: Task = "sequence-classification",
    arguments: Mapping[str, object] | None = None,
) -> LoadedWorkload:
    """A workload around a model made by hand; all rows have the same shape."""

    def collate(chosen: list[Row]) -> Batch:
        return {
            name: torch.stack([torch.as_tensor(row[name]) for row in chosen]) for name in rows[0]
        }

    return LoadedWorkload(
        facts=WorkloadFacts(
            name="by hand",
            task=task,
            model_class=type(model).__name__,
            num_parameters=0,
            num_trainable_parameters=0,
            parameter_bytes=0,
            num_rows=len(rows),
            tokens_median=None,
            tokens_max=None,
            precision="fp32",
            optim="adamw_torch",
            has_batch_norm=False,
            batch_dependent_loss=None,
        ),
        model=model,
        train_dataset=list(rows),  # type: ignore[arg-type]
        data_collator=collate,
        processing_class=None,
        arguments=arguments or {},
        loss_items="rows",
        longest_rows=lambda num: repeat_to(rows, num),
        typical_rows=lambda num: repeat_to(rows, num),
        count_tokens=lambda batch: 0,
    )


def rows_of(batch: Mapping[str, object]) -> list[Tokens]:
    """The rows of a batch without their padding."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    assert isinstance(ids, torch.Tensor)
    assert isinstance(mask, torch.Tensor)
    return [tuple(row[kept.bool()].tolist()) for row, kept in zip(ids, mask, strict=True)]


def windows(stepper: Stepper, num: int) -> list[list[list[Tokens]]]:
    """The rows of each micro-batch of the next windows."""
    return [[rows_of(batch) for batch in stepper.next_window()] for _ in range(num)]


def flat(window: Sequence[Sequence[Tokens]]) -> list[Tokens]:
    """The rows of a window in their order."""
    return [row for batch in window for row in batch]
