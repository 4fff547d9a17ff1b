"""What a model should learn, where nobody says it: other options tell it, or the model's config."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from autotune.cli.workload_options import Workload
from autotune.display import output
from autotune.workload.spec import Task

_TASK_OF_COLUMN: Mapping[str, Task] = {
    "question_column": "question-answering",
    "context_column": "question-answering",
    "answers_column": "question-answering",
    "source_column": "seq2seq-lm",
    "target_column": "seq2seq-lm",
    "tokens_column": "token-classification",
    "label_column": "sequence-classification",
}
_TASK_OF_ARCHITECTURE: Mapping[str, Task] = {
    "T5WithLMHeadModel": "seq2seq-lm",
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForMaskedLM": "masked-lm",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForConditionalGeneration": "seq2seq-lm",
    "ForImageClassification": "image-classification",
}


def told_task(chosen: Workload) -> tuple[Task, str | None] | None:
    """The task that follows from other options; None where none does.

    Returns:
        The task and the name of the column option that tells it; None for the model's config.
    """
    for name, task in _TASK_OF_COLUMN.items():
        if getattr(chosen, name) is not None:
            return task, name
    architecture = class_of(chosen)
    for ending, task in _TASK_OF_ARCHITECTURE.items():
        if architecture.endswith(ending):
            return task, None
    return None


def class_of(chosen: Workload) -> str:
    """The class that the config of the chosen model names; empty where that is not known."""
    return output.one_line(architecture_of(chosen.model or chosen.model_config or ""))


def architecture_of(source: str) -> str:
    """The class that a local config names; empty where there is none, or no such file."""
    path = Path(source).expanduser()
    try:
        config = json.loads((path / "config.json" if os.path.isdir(path) else path).read_bytes())
        return str(config["architectures"][0])
    except (OSError, ValueError, LookupError, TypeError):
        return ""
