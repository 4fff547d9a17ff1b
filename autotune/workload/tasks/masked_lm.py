"""Prediction of masked tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.errors import WorkloadError
from autotune.workload.loaded import Collator
from autotune.workload.tasks.packing import pack
from autotune.workload.tasks.recipe import Recipe, Samples, Tokenised

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class MaskedLm(Recipe):
    """Prediction of masked tokens on one text column.

    Without packing: `tokenizer(texts, truncation=True, max_length=…)`. With packing: blocks as for
    causal language models, without labels. Either way
    `DataCollatorForLanguageModeling(tokenizer, mlm=True)` masks 15 % of the tokens anew in every
    batch, from torch's global random state.
    """

    auto_model = "AutoModelForMaskedLM"
    usual_max_length = 512

    def tokenise(self, rows: Samples, max_length: int) -> Tokenised:
        """Tokenises, and packs where that is asked for."""
        texts = rows[self.columns.text or ""]
        if self.packing:
            return pack(self.tokenizer, texts, max_length)
        return dict(self.tokenizer(texts, truncation=True, max_length=max_length))

    def collator(self, model: PreTrainedModel) -> Collator:
        """Pads to the longest of a batch and masks.

        Raises:
            WorkloadError: The tokenizer has no token for masks or for padding.
        """
        from transformers import DataCollatorForLanguageModeling

        for token, remedy in (
            ("mask_token", "Choose the tokenizer of a masked language model, or another --task."),
            ("pad_token", "Name one with --pad-token."),
        ):
            if getattr(self.tokenizer, token) is None:
                raise WorkloadError(
                    f"The task masked-lm needs a {token.replace('_', ' ')}, and the tokenizer has "
                    "none.",
                    remedy,
                )
        mask: Collator = DataCollatorForLanguageModeling(tokenizer=self.tokenizer, mlm=True)
        return mask
