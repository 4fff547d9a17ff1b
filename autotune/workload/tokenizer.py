"""Loads the tokenizer of a workload, and says which token it pads with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import WorkloadError
from autotune.workload.spec import WorkloadSpec
from autotune.workload.translate import foreign_errors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "tekken.json",
)
"""One of these is in every directory that holds a tokenizer."""


def load_tokenizer(spec: WorkloadSpec, notes: list[str]) -> PreTrainedTokenizerBase:
    """The tokenizer of `spec`, with its padding token set where one was asked for.

    A causal language model whose tokenizer has no padding token pads with the end-of-sequence
    token, since padded positions carry no loss. Other tasks stay without one, which limits them to
    micro-batches of one sample; `notes` says either.

    Raises:
        WorkloadError: There is no tokenizer, or the padding token is not one of its tokens.
    """
    from transformers import AutoTokenizer

    source = spec.tokenizer or spec.model or spec.model_config or ""
    directory = Path(source).parent if os.path.isfile(source) else Path(source)
    if os.path.isdir(directory) and not any(
        os.path.isfile(directory / name) for name in TOKENIZER_FILES
    ):
        raise WorkloadError(
            f"There is no tokenizer in {directory}.",
            "Name the place of one with --tokenizer.",
        )
    place = str(directory) if os.path.isdir(directory) else source
    with foreign_errors(f"The tokenizer {place}", remedy="Name another one with --tokenizer."):
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=spec.trust_remote_code)
        if spec.task == "token-classification" and not getattr(tokenizer, "add_prefix_space", True):
            # Such a tokenizer takes lists of words only if it puts a space before each.
            tokenizer = AutoTokenizer.from_pretrained(
                place, trust_remote_code=spec.trust_remote_code, add_prefix_space=True
            )
    _set_padding(tokenizer, spec, notes)
    return tokenizer


def _set_padding(tokenizer: PreTrainedTokenizerBase, spec: WorkloadSpec, notes: list[str]) -> None:
    if spec.pad_token is not None:
        token = tokenizer.eos_token if spec.pad_token == "eos" else spec.pad_token
        if token is None or token not in tokenizer.get_vocab():
            known = ", ".join(dict.fromkeys(str(t) for t in tokenizer.all_special_tokens))
            raise WorkloadError(
                f"The padding token {spec.pad_token!r} is not a token of the tokenizer.",
                f"Choose one of its special tokens with --pad-token: {known or 'it has none'}.",
            )
        tokenizer.pad_token = token
        return
    is_packed = spec.packing and spec.task == "causal-lm"
    if tokenizer.pad_token is not None or is_packed:
        return
    if spec.task == "causal-lm" and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
        notes.append(
            f"The tokenizer has no padding token; {tokenizer.eos_token!r} is used, and padded "
            "positions carry no loss."
        )
        return
    notes.append(
        "The tokenizer has no padding token, so that only micro-batches of one sample are "
        "possible. Name one with --pad-token, for example --pad-token eos."
    )
