"""Next-token prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.workload.loaded import Collator
from autotune.workload.tasks.packing import pack
from autotune.workload.tasks.recipe import Recipe, Samples, Tokenised

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CausalLm(Recipe):
    """Next-token prediction on one text column.

    Without packing: `tokenizer(texts, truncation=True, max_length=…)`, rows of fewer than two
    tokens left out, and `DataCollatorForLanguageModeling(tokenizer, mlm=False)`, which takes the
    padded inputs as labels.

    With packing: the texts of each batch of 1000 rows are tokenised whole, each followed by the
    end-of-sequence token where the tokenizer did not add it, joined, and cut into blocks of
    `max_length`; what is left over is dropped. Labels are the inputs; `default_data_collator`.
    """

    auto_model = "AutoModelForCausalLM"
    usual_max_length = 1024
    peft_task = "CAUSAL_LM"
    least_tokens = 2

    def tokenise(self, rows: Samples, max_length: int) -> Tokenised:
        """Tokenises, and packs where that is asked for."""
        texts = rows[self.columns.text or ""]
        if not self.packing:
            return dict(self.tokenizer(texts, truncation=True, max_length=max_length))
        blocks = pack(self.tokenizer, texts, max_length)
        return {**blocks, "labels": blocks["input_ids"]}

    def collator(self, model: PreTrainedModel) -> Collator:
        """The language modelling collator, or plain stacking of equal blocks."""
        from transformers import DataCollatorForLanguageModeling, default_data_collator

        if self.packing:
            stack: Collator = default_data_collator
            return stack
        pad: Collator = DataCollatorForLanguageModeling(tokenizer=self.tokenizer, mlm=False)
        return pad
