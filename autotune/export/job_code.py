"""Python that prepares data, tokenizer, model and collator: the same in both scripts.

It says in the plain words of the guides what the loader of the workload does, so that a script
trains on the same rows, cut and padded alike, from the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autotune.errors import ExportError
from autotune.export.bundle import Bundle
from autotune.export.preparation import Preparation
from autotune.export.python_source import Imports, call, keywords, literal
from autotune.workload.source import Source, source_of
from autotune.workload.spec import WorkloadSpec

INDENT = 4


@dataclass
class JobCode:
    """Parts of a script, ready to be put together."""

    imports: Imports = field(default_factory=Imports)
    constants: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    """Definitions at the level of the module."""
    data: list[str] = field(default_factory=list)
    """Paragraphs of `main` that end with `dataset`, `tokenizer` and `data_collator`."""
    model: list[str] = field(default_factory=list)
    """Paragraphs of `main` that end with `model`; the seed is set before them."""

    def call(self, head: str, arguments: list[str], tail: str = ")") -> str:
        """A call at the level of `main`."""
        return call(head, arguments, tail=tail, indent=INDENT)


def job_code(bundle: Bundle, preparation: Preparation) -> JobCode:
    """Everything before the training loop.

    Raises:
        ExportError: There is no recipe for the task.
    """
    code = JobCode()
    _constants(code, bundle.workload)
    _dataset(code, bundle.workload, preparation)
    _tokenizer(code, bundle.workload, preparation)
    task = TASKS.get(bundle.workload.task)
    if task is None:
        raise ExportError(f"There is no script for the task {bundle.workload.task}.")
    task(code, bundle.workload, preparation)
    _lora(code, bundle.workload)
    return code


def _constants(code: JobCode, spec: WorkloadSpec) -> None:
    source = source_of(spec)
    name = "MODEL" if spec.model is not None else "MODEL_CONFIG"
    code.constants.append(f"{name} = {literal(spec.model or spec.model_config)}")
    if spec.tokenizer is not None and spec.tokenizer != (spec.model or spec.model_config):
        code.constants.append(f"TOKENIZER = {literal(spec.tokenizer)}")
    code.constants.append(f"DATASET = {literal(_dataset_place(source, spec))}")
    code.constants.append(f"MAX_LENGTH = {spec.max_length}")


def _dataset_place(source: Source, spec: WorkloadSpec) -> str:
    return source.path if source.kind == "load_from_disk" else str(spec.dataset)


def _dataset(code: JobCode, spec: WorkloadSpec, preparation: Preparation) -> None:
    source = source_of(spec)
    code.imports.add("datasets", source.kind)
    if source.kind == "load_from_disk":
        split = f"[{literal(source.split)}]" if source.split is not None else ""
        stream = ".to_iterable_dataset()" if spec.streaming else ""
        lines = [f"    dataset = load_from_disk(DATASET){split}{stream}"]
    else:
        options = dict(source.options)
        arguments = ["DATASET"]
        files = options.pop("data_files", None)
        if isinstance(files, dict):
            names = list(files)
            arguments = [literal(source.path)]
            one = "DATASET" if names == ["train"] else f"{{{literal(names[0])}: DATASET}}"
            arguments.append(f"data_files={one}")
        elif "name" in options:
            arguments.append(literal(options.pop("name")))
        arguments += keywords(options)
        if spec.streaming:
            arguments.append("streaming=True")
        lines = [code.call("dataset = load_dataset(", arguments)]
    if preparation.drops_blank_rows:
        code.functions.append(_IS_FILLED)
        columns = [name for name in _columns_read(spec) if name is not None]
        conditions = " and ".join(f"is_filled(row[{literal(name)}])" for name in columns)
        lines.append(code.call("dataset = dataset.filter(", [f"lambda row: {conditions}"]))
    code.data.append("\n".join(lines))


_IS_FILLED = '''\
def is_filled(value):
    """Whether a value is there and not blank."""
    return value is not None and value != [] and str(value).strip() != ""'''


def _columns_read(spec: WorkloadSpec) -> tuple[str | None, ...]:
    columns = spec.columns
    return {
        "causal-lm": (columns.text,),
        "masked-lm": (columns.text,),
        "sequence-classification": (columns.text, columns.text_pair, columns.label),
        "token-classification": (columns.tokens, columns.label),
        "question-answering": (columns.question, columns.context, columns.answers),
        "seq2seq-lm": (columns.source, columns.target),
    }[spec.task]


def _tokenizer(code: JobCode, spec: WorkloadSpec, preparation: Preparation) -> None:
    code.imports.add("transformers", "AutoTokenizer")
    place = spec.tokenizer
    if place is None or place == (spec.model or spec.model_config):
        name = "MODEL" if spec.model is not None else "MODEL_CONFIG"
        place_code = name if _is_directory_or_hub(spec) else f"os.path.dirname({name})"
        if place_code != name:
            code.imports.add("os")
    else:
        place_code = "TOKENIZER"
    arguments = [place_code]
    if spec.trust_remote_code:
        arguments.append("trust_remote_code=True")
    lines = [code.call("tokenizer = AutoTokenizer.from_pretrained(", arguments)]
    if preparation.pad_token is not None:
        lines.append(f"    tokenizer.pad_token = {preparation.pad_token}")
    code.data.append("\n".join(lines))


def _is_directory_or_hub(spec: WorkloadSpec) -> bool:
    return not Path(spec.model or spec.model_config or "").is_file()


def _map(code: JobCode, preparation: Preparation, *more: str) -> str:
    names = preparation.column_names
    columns = "dataset.column_names" if names is None else literal(list(names))
    mapping = code.call(
        "dataset = dataset.map(", ["tokenize", "batched=True", f"remove_columns={columns}"]
    )
    return "\n".join([mapping, *more])


def _collator(code: JobCode, preparation: Preparation, name: str, *arguments: str) -> None:
    if preparation.can_pad:
        code.imports.add("transformers", name)
        code.data.append(code.call(f"data_collator = {name}(", ["tokenizer", *arguments]))
    else:
        code.imports.add("transformers", "default_data_collator")
        code.data.append("    data_collator = default_data_collator")


def _model(
    code: JobCode,
    spec: WorkloadSpec,
    preparation: Preparation,
    auto_model: str,
    config: list[str] | None = None,
) -> None:
    """Loads the model, or makes it from its config; `config` are fields of the config to set."""
    code.imports.add("transformers", auto_model)
    config = list(config or [])
    options: list[str] = []
    if preparation.float32_option is not None:
        code.imports.add("torch")
        options.append(f"{preparation.float32_option}=torch.float32")
    if spec.trust_remote_code:
        options.append("trust_remote_code=True")
    if spec.model is None:
        code.imports.add("transformers", "AutoConfig")
        trust = ["trust_remote_code=True"] if spec.trust_remote_code else []
        lines = [
            code.call("config = AutoConfig.from_pretrained(", ["MODEL_CONFIG", *config, *trust]),
            code.call(f"model = {auto_model}.from_config(", ["config", *options]),
        ]
    else:
        if preparation.has_other_head_size:
            options.append("ignore_mismatched_sizes=True")
        lines = [code.call(f"model = {auto_model}.from_pretrained(", ["MODEL", *config, *options])]
    if preparation.sets_pad_token_id:
        lines.append("    model.config.pad_token_id = tokenizer.pad_token_id")
    code.model.append("\n".join(lines))


def _lora(code: JobCode, spec: WorkloadSpec) -> None:
    lora = spec.lora
    if lora is None:
        return
    code.imports.add("peft", "LoraConfig", "get_peft_model")
    options: dict[str, object] = {"task_type": PEFT_TASKS[spec.task], "r": lora.rank}
    if lora.alpha is not None:
        options["lora_alpha"] = lora.alpha
    if lora.dropout:
        options["lora_dropout"] = lora.dropout
    if lora.target_modules is not None:
        options["target_modules"] = list(lora.target_modules)
    code.model.append(
        "\n".join(
            [
                code.call("lora_config = LoraConfig(", keywords(options)),
                "    model = get_peft_model(model, lora_config)",
            ]
        )
    )


PEFT_TASKS = {
    "causal-lm": "CAUSAL_LM",
    "sequence-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
    "question-answering": "QUESTION_ANS",
    "seq2seq-lm": "SEQ_2_SEQ_LM",
}
"""Our task → peft's TaskType."""


def _sequence_classification(code: JobCode, spec: WorkloadSpec, preparation: Preparation) -> None:
    columns = spec.columns
    texts = [f"examples[{literal(n)}]" for n in (columns.text, columns.text_pair) if n is not None]
    label = literal(columns.label)
    _classes(code, spec, preparation, label, f"dataset[{label}]")
    tokenized = call(
        "encoded = tokenizer(", [*texts, "truncation=True", "max_length=MAX_LENGTH"], indent=8
    )
    labels = (
        f"examples[{label}]"
        if preparation.has_class_names
        else f"[label2id[str(label)] for label in examples[{label}]]"
    )
    code.data.append(
        f"    def tokenize(examples):\n{tokenized}\n"
        f'        encoded["labels"] = {labels}\n'
        "        return encoded"
    )
    code.data.append(_map(code, preparation))
    _collator(code, preparation, "DataCollatorWithPadding")
    config = ["id2label=id2label", "label2id=label2id"]
    if preparation.has_other_problem_type:
        config.append('problem_type="single_label_classification"')
    _model(code, spec, preparation, "AutoModelForSequenceClassification", config)


def _classes(
    code: JobCode, spec: WorkloadSpec, preparation: Preparation, label: str, values: str
) -> None:
    """Names and numbers of the classes, as `id2label` and `label2id`."""
    if preparation.has_class_names:
        classes = f"dataset.features[{label}].names"
    elif spec.streaming:
        classes = f"sorted({{row[{label}] for row in dataset.take(1000)}})"
    else:
        classes = f"sorted(set({values}))"
    code.data.append(
        f"    classes = {classes}\n"
        "    id2label = {i: str(label) for i, label in enumerate(classes)}\n"
        "    label2id = {label: i for i, label in id2label.items()}"
    )


def _causal_lm(code: JobCode, spec: WorkloadSpec, preparation: Preparation) -> None:
    text = f"examples[{literal(spec.columns.text)}]"
    if spec.packing:
        code.data.append(_packing(text, preparation, labels=True))
        code.data.append(_map(code, preparation))
        code.imports.add("transformers", "default_data_collator")
        code.data.append("    data_collator = default_data_collator")
    else:
        inner = call(
            "return tokenizer(", [text, "truncation=True", "max_length=MAX_LENGTH"], indent=8
        )
        code.data.append(f"    def tokenize(examples):\n{inner}")
        short = []
        if preparation.drops_short_rows:
            short = [
                "    # A single token has no next one to learn.",
                '    dataset = dataset.filter(lambda row: len(row["input_ids"]) > 1)',
            ]
        code.data.append(_map(code, preparation, *short))
        _collator(code, preparation, "DataCollatorForLanguageModeling", "mlm=False")
    _model(code, spec, preparation, "AutoModelForCausalLM")


def _packing(text: str, preparation: Preparation, *, labels: bool) -> str:
    """Joins the texts of a batch and cuts them into blocks of MAX_LENGTH tokens."""
    end = " + [tokenizer.eos_token_id]" if preparation.appends_end_token else ""
    lines = [
        "    def tokenize(examples):",
        f'        texts = tokenizer({text}, verbose=False)["input_ids"]',
        f"        joined = [token for ids in texts for token in ids{end}]",
        "        ends = range(MAX_LENGTH, len(joined) + 1, MAX_LENGTH)",
        "        blocks = [joined[end - MAX_LENGTH : end] for end in ends]",
        "        return {",
        '            "input_ids": blocks,',
        '            "attention_mask": [[1] * MAX_LENGTH for _ in blocks],',
    ]
    if labels:
        lines.append('            "labels": blocks,')
    return "\n".join([*lines, "        }"])


TASKS: dict[str, Callable[[JobCode, WorkloadSpec, Preparation], None]] = {
    "causal-lm": _causal_lm,
    "sequence-classification": _sequence_classification,
}
