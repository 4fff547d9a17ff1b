"""Options that say what is trained, and how: the fields of a `WorkloadSpec`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from autotune.cli.declare import PATH_OR_NAME, option

if TYPE_CHECKING:
    from autotune.workload.spec import Dtype, Precision, Task

# Written out so that `--help` loads no codec; a test holds them against the types.
TASKS: tuple[Task, ...] = (
    "causal-lm",
    "masked-lm",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "seq2seq-lm",
)
ESTIMATED_TASKS: tuple[Task, ...] = (*TASKS, "image-classification")
DTYPES: tuple[Dtype, ...] = ("auto", "float32", "bfloat16", "float16")
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16")

WORKLOAD = "What is trained"
COLUMNS = "Columns of the dataset"
TRAINING = "How it is trained"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained: the fields of `autotune.workload.spec.WorkloadSpec`."""

    model: Annotated[
        str | None,
        option("--model", "A local model directory or a hub id.", panel=WORKLOAD),
        PATH_OR_NAME,
    ] = None
    model_config: Annotated[
        str | None,
        option(
            "--model-config",
            "A config file or directory: the model is built from it with random weights.",
            panel=WORKLOAD,
        ),
        PATH_OR_NAME,
    ] = None
    tokenizer: Annotated[
        str | None,
        option("--tokenizer", "Where the tokenizer is, if not with the model.", panel=WORKLOAD),
        PATH_OR_NAME,
    ] = None
    dataset: Annotated[
        str | None,
        option(
            "--dataset",
            "A CSV, JSON, JSON Lines, Parquet or text file, a directory, or a hub name.",
            panel=WORKLOAD,
        ),
        PATH_OR_NAME,
    ] = None
    dataset_config: Annotated[
        str | None,
        option("--dataset-config", "Configuration of a hub dataset.", panel=WORKLOAD),
    ] = None
    split: Annotated[
        str | None,
        option("--split", "Split of the dataset; train by default.", panel=WORKLOAD),
    ] = None
    streaming: Annotated[
        bool,
        option("--streaming", "Read the dataset as a stream without a length.", panel=WORKLOAD),
    ] = False
    task: Annotated[
        str | None,
        option(
            "--task",
            "What the model learns; by default what columns and model suggest.",
            panel=WORKLOAD,
            choices=TASKS,
        ),
    ] = None
    demo: Annotated[
        bool,
        option(
            "--demo",
            "The built-in job: a small language model on text that Python ships.",
            panel=WORKLOAD,
        ),
    ] = False
    trust_remote_code: Annotated[
        bool,
        option(
            "--trust-remote-code",
            "Allow code that comes with the model or dataset.",
            panel=WORKLOAD,
        ),
    ] = False

    text_column: Annotated[
        str | None, option("--text-column", "Text, or first sentence.", panel=COLUMNS)
    ] = None
    text_pair_column: Annotated[
        str | None, option("--text-pair-column", "Second sentence.", panel=COLUMNS)
    ] = None
    label_column: Annotated[
        str | None,
        option("--label-column", "Class of a sample, or tags of its tokens.", panel=COLUMNS),
    ] = None
    tokens_column: Annotated[
        str | None, option("--tokens-column", "Words of a sentence.", panel=COLUMNS)
    ] = None
    question_column: Annotated[
        str | None, option("--question-column", "Question.", panel=COLUMNS)
    ] = None
    context_column: Annotated[
        str | None, option("--context-column", "Text that holds the answer.", panel=COLUMNS)
    ] = None
    answers_column: Annotated[
        str | None, option("--answers-column", "Answers with their places.", panel=COLUMNS)
    ] = None
    source_column: Annotated[
        str | None, option("--source-column", "Text that is read.", panel=COLUMNS)
    ] = None
    target_column: Annotated[
        str | None, option("--target-column", "Text that is written.", panel=COLUMNS)
    ] = None

    max_length: Annotated[
        int | None,
        option("--max-length", "Tokens a sample is cut at.", panel=TRAINING, metavar="N"),
    ] = None
    packing: Annotated[
        bool,
        option(
            "--packing",
            "Join texts and cut them into blocks of --max-length tokens.",
            panel=TRAINING,
        ),
    ] = False
    pad_token: Annotated[
        str | None,
        option(
            "--pad-token",
            "A token to pad with where the tokenizer has none; eos is its end of sequence.",
            panel=TRAINING,
        ),
    ] = None
    precision: Annotated[
        str | None,
        option(
            "--precision",
            "Number format of the computation; fp32 by default.",
            panel=TRAINING,
            choices=PRECISIONS,
        ),
    ] = None
    optim: Annotated[
        str | None,
        option("--optim", "Optimizer, by its name in TrainingArguments.", panel=TRAINING),
    ] = None
    learning_rate: Annotated[
        float | None,
        option("--learning-rate", "Learning rate.", panel=TRAINING, metavar="RATE"),
    ] = None
    lora_rank: Annotated[
        int | None,
        option("--lora-rank", "Train LoRA adapters of this rank.", panel=TRAINING, metavar="N"),
    ] = None
    lora_alpha: Annotated[
        int | None,
        option("--lora-alpha", "Scale of the adapters.", panel=TRAINING, metavar="N"),
    ] = None
    lora_dropout: Annotated[
        float | None,
        option("--lora-dropout", "Dropout of the adapters.", panel=TRAINING, metavar="P"),
    ] = None
    lora_target_modules: Annotated[
        str | None,
        option(
            "--lora-target-modules",
            "Modules that get adapters, separated by commas.",
            panel=TRAINING,
            metavar="NAMES",
        ),
    ] = None
    micro_batch_size: Annotated[
        int | None,
        option(
            "--micro-batch-size",
            "Your present micro-batch size: the baseline to compare with.",
            panel=TRAINING,
            metavar="N",
        ),
    ] = None
    training_seed: Annotated[
        int | None,
        option(
            "--training-seed",
            "Seed of the training: order of the data, fresh weights; 42 by default.",
            panel=TRAINING,
            metavar="N",
        ),
    ] = None
