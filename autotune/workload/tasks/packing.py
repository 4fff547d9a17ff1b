"""Joins texts and cuts them into blocks of equal length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def pack(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[object], block_tokens: int
) -> dict[str, list[object]]:
    """Blocks of exactly `block_tokens` tokens; the incomplete last one is dropped.

    Every text ends with the end-of-sequence token where the tokenizer has one and did not already
    close the text with a special token.
    """
    # The tokenizer would warn of texts beyond its limit, which the blocks keep anyway.
    encoded = tokenizer(texts, truncation=False, verbose=False)["input_ids"]
    # An unknown word at the end closes nothing, special as its token is.
    end, special = tokenizer.eos_token_id, set(tokenizer.all_special_ids)
    special.discard(tokenizer.unk_token_id)
    joined: list[int] = []
    for ids in encoded:
        joined += ids
        if end is not None and (not ids or ids[-1] not in special):
            joined.append(end)
    num_blocks = len(joined) // block_tokens
    blocks: list[object] = [
        joined[i * block_tokens : (i + 1) * block_tokens] for i in range(num_blocks)
    ]
    return {"input_ids": blocks, "attention_mask": [[1] * block_tokens] * num_blocks}
