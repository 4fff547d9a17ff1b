"""How a workload is brought: as names and options, or as live objects in a file.

Both hold plain data only, so that they travel as JSON to every child process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias, get_args

from pydantic import TypeAdapter

Task: TypeAlias = Literal[
    "causal-lm",
    "masked-lm",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "seq2seq-lm",
    "image-classification",
]
ESTIMATED_TASKS: tuple[Task, ...] = get_args(Task)
"""Tasks whose memory can be estimated from a config alone."""
TASKS: tuple[Task, ...] = tuple(task for task in ESTIMATED_TASKS if task != "image-classification")
"""Tasks that a spec can bring data for: texts."""

Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
"""Number format of the weights, by torch's name; auto is what the installed transformers holds
those of the model in where nobody says otherwise."""
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which column of the dataset holds what; None lets the task choose by its usual names."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    """Class of a sample, or the tags of its tokens."""
    tokens: str | None = None
    question: str | None = None
    context: str | None = None
    answers: str | None = None
    source: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapters through peft; targets None lets peft choose for the architecture."""

    rank: int
    alpha: int | None = None
    dropout: float = 0.0
    target_modules: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Model, data and training choices that stay fixed while the knobs are searched."""

    task: Task
    model: str | None = None
    """A local model directory or a hub id."""
    model_config: str | None = None
    """A config file or directory: the model is built from it with random weights."""
    tokenizer: str | None = None
    """Where the tokenizer is, if not with the model."""
    dataset: str | None = None
    """A local file or directory, or a hub name."""
    dataset_config: str | None = None
    split: str = "train"
    streaming: bool = False
    """Read the dataset as a stream without a length."""
    columns: Columns = Columns()
    max_length: int | None = None
    """Tokens a sample is cut at; None is what model and task suggest."""
    packing: bool = False
    """Join texts and cut them into blocks of `max_length` tokens (language modelling)."""
    pad_token: str | None = None
    """A token to pad with, for tokenizers that have none; "eos" is the end-of-sequence token."""
    precision: Precision = "fp32"
    dtype: Dtype = "float32"
    optim: str | None = None
    """A name of `transformers.training_args.OptimizerNames`; None is the installed default."""
    learning_rate: float | None = None
    lora: Lora | None = None
    seed: int = 42
    trust_remote_code: bool = False
    demo: bool = False
    """The built-in job: a small language model on text that Python ships."""

    @property
    def name(self) -> str:
        """A short name for run directories and reports."""
        if self.demo:
            return "demo"
        source = (self.model or self.model_config or "model").rstrip("/")
        return source.rsplit("/", 1)[-1].removesuffix(".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capsule:
    """A workload of live objects, which a file in the run directory holds by value."""

    name: str
    """A short name for run directories and reports."""
    file: str
    """Name of the file in the run's directory for workloads."""
    digest: str
    """Changes whenever model, data or training choices change."""
    precision: Precision
    world_size: int = 1
    """Ranks of the job that was captured."""
    import_path: tuple[str, ...] = ()
    """Where the capturing process finds modules that the file only names."""


Workload: TypeAlias = WorkloadSpec | Capsule
"""What is trained, in the form in which it was brought."""


@cache
def workload_adapter() -> TypeAdapter[Workload]:
    """The codec between workloads and JSON."""
    return TypeAdapter(Workload)
