"""One module a task: which columns become which tokens, labels and batches."""

from __future__ import annotations

from importlib import import_module

from autotune.workload.spec import Task
from autotune.workload.tasks.recipe import Recipe

_MODULES: dict[Task, tuple[str, str]] = {
    "image-classification": ("image_classification", "ImageClassification"),
    "causal-lm": ("causal_lm", "CausalLm"),
    "masked-lm": ("masked_lm", "MaskedLm"),
    "question-answering": ("question_answering", "QuestionAnswering"),
    "seq2seq-lm": ("seq2seq_lm", "Seq2SeqLm"),
    "sequence-classification": ("sequence_classification", "SequenceClassification"),
    "token-classification": ("token_classification", "TokenClassification"),
}


def recipe_class(task: Task) -> type[Recipe]:
    """The recipe of a task."""
    module, name = _MODULES[task]
    found: type[Recipe] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
