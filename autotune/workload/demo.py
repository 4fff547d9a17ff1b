"""The built-in job: a small language model on the documentation that Python ships.

It is written out as an ordinary config, tokenizer and dataset, so that everything after it, and
every exported script, treats it as any other workload.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from autotune.run_directory import write_atomically
from autotune.workload.spec import Columns, WorkloadSpec

MAX_LENGTH = 64
VOCABULARY = 1024
END_OF_TEXT, PADDING = "<|endoftext|>", "<|pad|>"

CONFIG = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 128,
    "n_head": 4,
    "n_layer": 4,
    "n_positions": MAX_LENGTH,
    "activation_function": "gelu_pytorch_tanh",
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "use_cache": False,
}
"""About a million parameters: a step at a global batch size of 32 takes a fraction of a second."""


def materialise(spec: WorkloadSpec, directory: Path) -> WorkloadSpec:
    """Writes config, tokenizer and text below `directory`, once, and points `spec` at them."""
    model, data = directory / "demo-model", directory / "demo.jsonl"
    config = model / "config.json"
    if not config.is_file():
        passages = list(_passages())
        lines = (json.dumps({"text": text}, ensure_ascii=False) for text in passages)
        write_atomically(data, "\n".join(lines) + "\n")
        vocabulary_size = _write_tokenizer(passages, model)
        # Last, because its presence says that everything else is complete.
        write_atomically(config, json.dumps({**CONFIG, "vocab_size": vocabulary_size}, indent=2))
    return replace(
        spec,
        task="causal-lm",
        model=None,
        model_config=str(model),
        tokenizer=str(model),
        dataset=str(data),
        dataset_config=None,
        split="train",
        columns=Columns(text="text"),
        max_length=spec.max_length or MAX_LENGTH,
    )


def _passages(most_characters: int = 160) -> Iterator[str]:
    """Neighbouring paragraphs of a topic, joined up to about `most_characters`."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        passage = ""
        for paragraph in re.split(r"\n\s*\n", topics[name]):
            if passage and len(passage) + len(paragraph) > most_characters:
                yield passage
                passage = ""
            passage = f"{passage}\n\n{paragraph.strip()}".strip()
        if passage:
            yield passage


def _write_tokenizer(passages: list[str], directory: Path) -> int:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(passages, trainer)
    write_atomically(directory / "tokenizer.json", tokenizer.to_str(pretty=True))
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_LENGTH,
        "eos_token": END_OF_TEXT,
        "pad_token": PADDING,
    }
    write_atomically(directory / "tokenizer_config.json", json.dumps(options, indent=2))
    return int(tokenizer.get_vocab_size())
