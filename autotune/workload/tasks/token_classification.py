"""One class a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.errors import WorkloadError
from autotune.workload.data import column_values
from autotune.workload.loaded import Collator
from autotune.workload.tasks.labels import Classes, classes_of, declared_names
from autotune.workload.tasks.recipe import (
    Recipe,
    Samples,
    Tokenised,
    UnpaddedCollator,
    require_fast,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from autotune.workload.data import AnyDataset

IGNORED = -100


@dataclass(kw_only=True)
class TokenClassification(Recipe):
    """One class for every word of a list of words.

    `tokenizer(words, truncation=True, max_length=…, is_split_into_words=True)`; `labels` holds the
    place of the tag among the sorted distinct tags (or the names of a `ClassLabel`) at the first
    token of every word, and -100 elsewhere. `DataCollatorForTokenClassification(tokenizer)`.
    """

    auto_model = "AutoModelForTokenClassification"
    usual_max_length = 512
    peft_task = "TOKEN_CLS"

    classes: Classes = field(init=False)

    def learn_labels(self, dataset: AnyDataset) -> None:
        """Finds the tags, and checks that there is one for every word."""
        require_fast(self.tokenizer, "token-classification")
        words, tags = self.columns.tokens or "", self.columns.label or ""
        for name in (words, tags):
            first = next(iter(column_values(dataset, name)), None)
            if not isinstance(first, Sequence) or isinstance(first, str):
                raise WorkloadError(
                    f"Column {name!r} holds {type(first).__name__} values, not lists.",
                    "Give one list of words and one of tags a sample, as in "
                    '{"tokens": ["Ada", "wrote"], "tags": ["NAME", "O"]}.',
                )
        names = declared_names(dataset, tags)
        found = (tag for row in column_values(dataset, tags) for tag in _items(row))
        self.classes = classes_of(() if names else found, names, tags)

    def configure(self, config: PretrainedConfig) -> None:
        """Gives the head one output a class."""
        self.classes.configure(config)

    def tokenise(self, rows: Samples, max_length: int) -> Tokenised:
        """Tokenises the words and puts each tag at the first token of its word."""
        words, tags = rows[self.columns.tokens or ""], rows[self.columns.label or ""]
        encoded = self.tokenizer(
            words, truncation=True, max_length=max_length, is_split_into_words=True
        )
        labels: list[object] = []
        for number, (row_words, row_tags) in enumerate(zip(words, tags, strict=True)):
            row_words, row_tags = _items(row_words), _items(row_tags)
            if len(row_words) != len(row_tags):
                raise WorkloadError(
                    f"A sample has {len(row_words)} words and {len(row_tags)} tags: "
                    f"{' '.join(str(word) for word in row_words[:8])} …",
                    "Give every word exactly one tag.",
                )
            labels.append(_aligned(encoded.word_ids(number), self.classes.numbers(row_tags)))
        return {**encoded, "labels": labels}

    def collator(self, model: PreTrainedModel) -> Collator:
        """Pads tokens and labels to the longest of a batch."""
        from transformers import DataCollatorForTokenClassification

        if self.tokenizer.pad_token is None:
            return UnpaddedCollator()
        pad: Collator = DataCollatorForTokenClassification(tokenizer=self.tokenizer)
        return pad


def _aligned(word_ids: Sequence[int | None], tags: Sequence[int]) -> list[int]:
    labels, previous = [], None
    for word in word_ids:
        labels.append(IGNORED if word is None or word == previous else tags[word])
        previous = word
    return labels


def _items(row: object) -> Sequence[object]:
    return row if isinstance(row, Sequence) else ()
