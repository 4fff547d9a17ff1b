"""Model directories small enough to load in milliseconds, with tokenizers made on the spot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = (
    *("good", "bad", "fine", "poor", "film", "plot", "actor", "scene", "the", "a", "of", "is"),
    *("was", "it", "and", "not", "very", "all", "this", "that", "Ada", "Paris", "London"),
    *("lives", "in", "wrote", "where", "who"),
)
"""Every text of these words has as many tokens as words, special tokens apart."""

TEXTS = (
    "good film",
    "the plot was bad",
    "fine",
    "it is a very poor film and not good",
    "bad actor",
)
LABELS = (1, 0, 1, 0, 0)

_BERT_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]


def bert(directory: Path, *, positions: int = 32, vocabulary: int | None = None) -> Path:
    """A BERT config with a tokenizer that adds [CLS] and [SEP]."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    size = _tokenizer(
        directory,
        special,
        {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        | {"mask_token": "[MASK]", "model_input_names": _BERT_INPUTS},
        closing=("[CLS]", "[SEP]"),
    )
    return _config(
        directory,
        model_type="bert",
        architectures=["BertModel"],
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=positions,
        pad_token_id=0,
        vocab_size=vocabulary or size,
    )


def gpt2(directory: Path, *, with_pad: bool = False) -> Path:
    """A GPT-2 config with a tokenizer that adds nothing, by default without a padding token."""
    options = {
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if with_pad:
        options["pad_token"] = "<pad>"
    size = _tokenizer(directory, ["<eos>", "<unk>", "<pad>"], options)
    return _config(
        directory,
        model_type="gpt2",
        architectures=["GPT2LMHeadModel"],
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=32,
        vocab_size=size,
        bos_token_id=0,
        eos_token_id=0,
    )


def t5(directory: Path) -> Path:
    """A T5 config with a tokenizer that closes every text."""
    size = _tokenizer(
        directory,
        ["<pad>", "</s>", "<unk>"],
        {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
        closing=(None, "</s>"),
    )
    return _config(
        directory,
        model_type="t5",
        architectures=["T5ForConditionalGeneration"],
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        vocab_size=size,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )


def _config(directory: Path, **fields: object) -> Path:
    (directory / "config.json").write_text(json.dumps(fields))
    return directory


def _tokenizer(
    directory: Path,
    special: Sequence[str],
    options: Mapping[str, object],
    closing: tuple[str | None, str] | None = None,
) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    unknown = next(word for word in special if "unk" in word.lower())
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(special))
    if closing is not None:
        first, last = closing
        start = f"{first} " if first else ""
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start}$A {last}",
            pair=f"{start}$A {last} $B:1 {last}:1",
            special_tokens=[(word, vocabulary[word]) for word in closing if word],
        )
    tokenizer.save(str(directory / "tokenizer.json"))
    defaults = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}
    (directory / "tokenizer_config.json").write_text(json.dumps({**defaults, **options}))
    return len(vocabulary)
