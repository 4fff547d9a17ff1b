"""Small models of many families, to hold the law of memory against the real allocator."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from autotune.configuration import Configuration
from autotune.cost.memory.trace import TracedWorkload
from autotune.request import Driver
from autotune.tracing.request import TraceRequest
from autotune.tracing.trace import fake_mode, trace
from autotune.trial.stepper import make_stepper, train_window
from autotune.workload.loaded import LoadedWorkload, Row
from autotune.workload.lora import add_adapters
from autotune.workload.spec import Lora, Task, WorkloadSpec
from tests.autotune.trial.workloads import around
from tests.testing.allocator import peak_in_fork

DEEP = ("GPT-2", "Llama with GQA", "BERT")
"""Families whose number of layers can be chosen."""
VOCABULARY = 1000
NUM_TOKENS = 48
NUM_PADDED = 5
NUM_ROWS = 64
NUM_STEPS = 2
"""The second one holds the peak, since the first one makes the optimizer's state."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One model with one kind of rows."""

    family: str
    dropout: bool = False
    padded: bool = False
    precision: str = "fp32"
    lora: bool = False
    optim: str | None = None
    smoothing: float = 0.0
    """Of the labels."""
    driver: Driver = "trainer"
    num_layers: int | None = None
    """Of a model of `DEEP`; None is what its family usually has here."""
    weights: torch.dtype = torch.float32
    """What the model's own weights are held in."""

    def load(self) -> LoadedWorkload:
        """The workload, made anew and always the same."""
        torch.manual_seed(0)
        family = FAMILIES[self.family]
        model = family.model(0.1 if self.dropout else 0.0, self.num_layers).train()
        if self.weights is not torch.float32:
            model = model.to(self.weights)
        if self.lora:
            model = add_adapters(model, Lora(rank=4, dropout=0.1 if self.dropout else 0.0), None)
        arguments: dict[str, object] = {"bf16": True} if self.precision == "bf16" else {}
        if self.optim is not None:
            arguments["optim"] = self.optim
        if self.smoothing:
            arguments["label_smoothing_factor"] = self.smoothing
        rows = _rows_of(self.family, self.padded)
        return around(model, rows, task=family.task, arguments=arguments)

    def peak_bytes(self, configuration: Configuration) -> int:
        """What the CPU's allocator holds at its most in training, model and data included."""

        def run() -> None:
            workload = self.load()
            with tempfile.TemporaryDirectory() as directory:
                stepper = make_stepper(
                    workload,
                    configuration,
                    driver=self.driver,
                    output_dir=directory,
                    repair_loss=False,
                )
                for _ in range(NUM_STEPS):
                    rows = workload.longest_rows(configuration.micro_batch_size)
                    window = [
                        stepper.collate(rows) for _ in range(configuration.accumulation_steps)
                    ]
                    stepper.set_window(window)
                    train_window(stepper, window)
                    del window

        # Data is there before the process that is measured.
        _rows_of(self.family, self.padded)
        return peak_in_fork(run)

    def trace(self, **changes: Any) -> TracedWorkload:
        """The trace of the workload, in this process."""
        request = replace(
            TraceRequest(workload=WorkloadSpec(task="causal-lm"), driver=self.driver), **changes
        )
        with tempfile.TemporaryDirectory() as directory:
            return trace(self.load(), request, Path(directory), fake_mode())


@dataclass(frozen=True, kw_only=True)
class Family:
    """How a model and its rows are made."""

    model: Callable[[float, int | None], Any]
    """Of a dropout rate, and of a number of layers where it is not the usual one."""
    rows: Callable[[bool], list[Row]]
    """With padding, or without."""
    task: Task = "causal-lm"


@cache
def _rows_of(family: str, padded: bool) -> list[Row]:
    return FAMILIES[family].rows(padded)


def _tokens(num: int = NUM_TOKENS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(5, VOCABULARY, (NUM_ROWS, num), generator=generator)


def _mask(padded: bool, num: int = NUM_TOKENS) -> torch.Tensor:
    mask = torch.ones(num, dtype=torch.int64)
    if padded:
        mask[-NUM_PADDED:] = 0
    return mask


def _language_rows(padded: bool) -> list[Row]:
    mask = _mask(padded)
    return [
        {
            "input_ids": row,
            "attention_mask": mask,
            "labels": torch.where(mask.bool(), row, -100),
        }
        for row in _tokens()
    ]


def _class_rows(padded: bool) -> list[Row]:
    return [
        {"input_ids": row, "attention_mask": _mask(padded), "labels": torch.tensor(i % 2)}
        for i, row in enumerate(_tokens())
    ]


def _pair_rows(padded: bool) -> list[Row]:
    targets = _tokens(NUM_TOKENS - 16)
    return [
        {
            "input_ids": row,
            "attention_mask": _mask(padded),
            "labels": target,
            "decoder_input_ids": target,
        }
        for row, target in zip(_tokens(), targets, strict=True)
    ]


def _image_rows(padded: bool) -> list[Row]:
    pixels = torch.randn(NUM_ROWS, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return [{"pixel_values": row, "labels": torch.tensor(i % 10)} for i, row in enumerate(pixels)]


def _gpt2(dropout: float, num_layers: int | None) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=num_layers or 4,
            n_embd=96,
            n_head=4,
            vocab_size=VOCABULARY,
            n_positions=64,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            use_cache=False,
        )
    )


def _llama(dropout: float, num_layers: int | None) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=num_layers or 4,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
            attention_dropout=dropout,
            use_cache=False,
        )
    )


def _bert(dropout: float, num_layers: int | None) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            hidden_size=96,
            intermediate_size=384,
            num_hidden_layers=num_layers or 4,
            num_attention_heads=4,
            vocab_size=VOCABULARY,
            max_position_embeddings=64,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def _distilbert(dropout: float, _: int | None) -> Any:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    return DistilBertForSequenceClassification(
        DistilBertConfig(
            dim=96,
            hidden_dim=384,
            n_layers=4,
            n_heads=4,
            vocab_size=VOCABULARY,
            max_position_embeddings=64,
            dropout=dropout,
            attention_dropout=dropout,
            seq_classif_dropout=dropout,
        )
    )


def _t5(dropout: float, _: int | None) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            d_model=96,
            d_kv=24,
            d_ff=256,
            num_layers=3,
            num_heads=4,
            vocab_size=VOCABULARY,
            dropout_rate=dropout,
            decoder_start_token_id=0,
            use_cache=False,
        )
    )


def _vit(dropout: float, _: int | None) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=96,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            image_size=32,
            patch_size=4,
            num_labels=10,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def _mixtral(dropout: float, _: int | None) -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(
        MixtralConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=4,
            vocab_size=VOCABULARY,
            attention_dropout=dropout,
            use_cache=False,
        )
    )


FAMILIES: Mapping[str, Family] = {
    "GPT-2": Family(model=_gpt2, rows=_language_rows),
    "Llama with GQA": Family(model=_llama, rows=_language_rows),
    "BERT": Family(model=_bert, rows=_class_rows, task="sequence-classification"),
    "DistilBERT": Family(model=_distilbert, rows=_class_rows, task="sequence-classification"),
    "T5": Family(model=_t5, rows=_pair_rows, task="seq2seq-lm"),
    "ViT": Family(model=_vit, rows=_image_rows, task="sequence-classification"),
    "Mixtral": Family(model=_mixtral, rows=_language_rows),
}
