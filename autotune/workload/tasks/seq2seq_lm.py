"""Writing a text after reading one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.errors import WorkloadError
from autotune.workload.loaded import Batch, Collator
from autotune.workload.tasks.recipe import Recipe, Samples, Tokenised, UnpaddedCollator

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


class Seq2SeqLm(Recipe):
    """Writing the target text after reading the source text.

    `tokenizer(sources, text_target=targets, truncation=True, max_length=…)`: both are cut at the
    same length, and `labels` are the tokens of the target.
    `DataCollatorForSeq2Seq(tokenizer, model=model)`.
    """

    auto_model = "AutoModelForSeq2SeqLM"
    usual_max_length = 1024
    peft_task = "SEQ_2_SEQ_LM"
    length_fields = ("input_ids", "labels")
    least_tokens = 2

    def configure(self, config: PretrainedConfig) -> None:
        """Checks that the decoder knows how to start.

        Raises:
            WorkloadError: The config names no start token.
        """
        if getattr(config, "decoder_start_token_id", None) is None:
            raise WorkloadError(
                "The config of the model has no decoder_start_token_id, so that the decoder "
                "cannot start.",
                "Add it to config.json; for T5 it is the pad_token_id.",
            )

    def tokenise(self, rows: Samples, max_length: int) -> Tokenised:
        """Tokenises both texts."""
        return dict(
            self.tokenizer(
                rows[self.columns.source or ""],
                text_target=rows[self.columns.target or ""],
                truncation=True,
                max_length=max_length,
            )
        )

    def collator(self, model: PreTrainedModel) -> Collator:
        """Pads both sides and shifts the labels into the decoder's inputs."""
        from transformers import DataCollatorForSeq2Seq

        if self.tokenizer.pad_token is None:
            return UnpaddedCollator()
        pad: Collator = DataCollatorForSeq2Seq(tokenizer=self.tokenizer, model=model)
        return pad

    def count_tokens(self, batch: Batch) -> int:
        """Tokens read and tokens written."""
        return super().count_tokens(batch) + int((batch["labels"] != -100).sum())
