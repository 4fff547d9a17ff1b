"""Finding the answer to a question within a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.errors import WorkloadError
from autotune.workload.data import column_values
from autotune.workload.loaded import Collator
from autotune.workload.tasks.recipe import (
    Recipe,
    Samples,
    Tokenised,
    UnpaddedCollator,
    require_fast,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from autotune.workload.data import AnyDataset

NO_ANSWER = (0, 0)


class QuestionAnswering(Recipe):
    """Finding the answer to a question within its context, in the form of SQuAD.

    `tokenizer(questions, contexts, truncation="only_second", max_length=…)`, one sample a row;
    `start_positions` and `end_positions` are the first and last token of the first answer, both 0
    where there is none or where it was cut off. `DataCollatorWithPadding(tokenizer)`.
    """

    auto_model = "AutoModelForQuestionAnswering"
    usual_max_length = 384
    peft_task = "QUESTION_ANS"

    def learn_labels(self, dataset: AnyDataset) -> None:
        """Checks the form of the answers."""
        require_fast(self.tokenizer, "question-answering")
        column = self.columns.answers or ""
        for value in column_values(dataset, column):
            if not isinstance(value, Mapping) or not {"text", "answer_start"} <= value.keys():
                raise WorkloadError(
                    f"Column {column!r} does not hold answers in the form of SQuAD.",
                    'Give objects such as {"text": ["Paris"], "answer_start": [17]}, with empty '
                    "lists where there is no answer.",
                )
            return

    def tokenise(self, rows: Samples, max_length: int) -> Tokenised:
        """Tokenises question and context, and finds the tokens of the answer."""
        encoded = self.tokenizer(
            rows[self.columns.question or ""],
            rows[self.columns.context or ""],
            truncation="only_second",
            max_length=max_length,
            return_offsets_mapping=True,
        )
        offsets = encoded.pop("offset_mapping")
        spans = [
            _span(encoded.sequence_ids(number), offsets[number], answers)
            for number, answers in enumerate(rows[self.columns.answers or ""])
        ]
        return {
            **encoded,
            "start_positions": [start for start, _ in spans],
            "end_positions": [end for _, end in spans],
        }

    def collator(self, model: PreTrainedModel) -> Collator:
        """Pads to the longest of a batch."""
        from transformers import DataCollatorWithPadding

        if self.tokenizer.pad_token is None:
            return UnpaddedCollator()
        pad: Collator = DataCollatorWithPadding(tokenizer=self.tokenizer)
        return pad


def _span(
    sequence_ids: Sequence[int | None], offsets: Sequence[Sequence[int]], answers: object
) -> tuple[int, int]:
    """First and last token of the first answer."""
    if not isinstance(answers, Mapping) or not answers["text"]:
        return NO_ANSWER
    start_character = answers["answer_start"][0]
    end_character = start_character + len(answers["text"][0])
    inside = [
        token
        for token, sequence in enumerate(sequence_ids)
        if sequence == 1
        and offsets[token][0] < end_character
        and offsets[token][1] > start_character
    ]
    if not inside:
        return NO_ANSWER
    first, last = inside[0], inside[-1]
    is_whole = offsets[first][0] <= start_character and offsets[last][1] >= end_character
    return (first, last) if is_whole else NO_ANSWER
