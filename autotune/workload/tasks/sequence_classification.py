"""One class a text, or a pair of texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.workload.data import column_values
from autotune.workload.loaded import Collator
from autotune.workload.tasks.labels import Classes, classes_of, declared_names
from autotune.workload.tasks.recipe import Recipe, Samples, Tokenised, UnpaddedCollator

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from autotune.workload.data import AnyDataset


@dataclass(kw_only=True)
class SequenceClassification(Recipe):
    """One class for a text, or for a pair of texts.

    `tokenizer(texts[, pairs], truncation=True, max_length=…)` and `labels`, the place of the
    label among its sorted distinct values (or among the names of a `ClassLabel`).
    `DataCollatorWithPadding(tokenizer)`.
    """

    auto_model = "AutoModelForSequenceClassification"
    usual_max_length = 512
    peft_task = "SEQ_CLS"

    classes: Classes = field(init=False)

    def learn_labels(self, dataset: AnyDataset) -> None:
        """Finds the classes of the label column."""
        column = self.columns.label or ""
        names = declared_names(dataset, column)
        self.classes = classes_of(() if names else column_values(dataset, column), names, column)

    def configure(self, config: PretrainedConfig) -> None:
        """Gives the head one output a class."""
        self.classes.configure(config)
        config.problem_type = "single_label_classification"

    def tokenise(self, rows: Samples, max_length: int) -> Tokenised:
        """Tokenises the text or texts and numbers the label."""
        texts = [rows[name] for name in (self.columns.text, self.columns.text_pair) if name]
        encoded = self.tokenizer(*texts, truncation=True, max_length=max_length)
        labels = self.classes.numbers(rows[self.columns.label or ""])
        return {**encoded, "labels": labels}

    def collator(self, model: PreTrainedModel) -> Collator:
        """Pads to the longest of a batch."""
        from transformers import DataCollatorWithPadding

        if self.tokenizer.pad_token is None:
            return UnpaddedCollator()
        pad: Collator = DataCollatorWithPadding(tokenizer=self.tokenizer)
        return pad
