"""Python that prepares data, tokenizer, model and collator for any task: the same in both scripts.

It says in the plain words of the guides what the loader of the workload does, so that a script
trains on the same rows, cut and padded alike, from the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from autotune.export.scripts.preparation import Preparation
from autotune.export.scripts.python_source import Imports, call, keywords, literal
from autotune.workload.columns import TASK_ROLES
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
    """Paragraphs of `main` that end with `dataset` and `tokenizer`."""
    model: list[str] = field(default_factory=list)
    """Statements of `main` that end with `model`; the seed is set before them."""
    collator: str = ""
    """The statement of `main` that ends with `data_collator`; it may ask the model."""

    def call(self, head: str, arguments: list[str], tail: str = ")") -> str:
        """A call at the level of `main`."""
        return call(head, arguments, tail=tail, indent=INDENT)


def constants(code: JobCode, spec: WorkloadSpec) -> None:
    """Where everything is, at the top of the script where a reader would change it."""
    source = source_of(spec)
    name = "MODEL" if spec.model is not None else "MODEL_CONFIG"
    place = spec.model or spec.model_config
    code.constants.append(f"{name} = {literal(place)}")
    if _tokenizer_place(spec) != place:
        code.constants.append(f"TOKENIZER = {literal(_tokenizer_place(spec))}")
    code.constants.append(f"DATASET = {literal(_dataset_place(source, spec))}")
    code.constants.append(f"MAX_LENGTH = {spec.max_length}")


def _tokenizer_place(spec: WorkloadSpec) -> str:
    place = spec.tokenizer or spec.model or spec.model_config or ""
    return str(Path(place).parent) if Path(place).is_file() else place


def _dataset_place(source: Source, spec: WorkloadSpec) -> str:
    if source.kind == "load_from_disk":
        return source.path
    files = source.options.get("data_files")
    return str(next(iter(files.values())) if isinstance(files, dict) else spec.dataset)


def dataset(code: JobCode, spec: WorkloadSpec, preparation: Preparation) -> None:
    """Reads the rows, and leaves out those in which something is missing."""
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
        columns = [getattr(spec.columns, role.field) for role in TASK_ROLES[spec.task]]
        filled = literal(tuple(name for name in columns if name is not None))
        code.functions.append(_IS_FILLED.format(names=filled))
        lines.append("    dataset = dataset.filter(is_filled)")
    code.data.append("\n".join(lines))


_IS_FILLED = '''\
def is_filled(row):
    """Whether no column that is read is missing or blank."""
    values = [row[name] for name in {names}]
    return all(value not in (None, []) and str(value).strip() for value in values)'''


def tokenizer(code: JobCode, spec: WorkloadSpec, preparation: Preparation) -> None:
    """Loads the tokenizer and sets what it lacks."""
    code.imports.add("transformers", "AutoTokenizer")
    is_apart = _tokenizer_place(spec) != (spec.model or spec.model_config)
    beside = "MODEL" if spec.model is not None else "MODEL_CONFIG"
    arguments = ["TOKENIZER" if is_apart else beside]
    if preparation.adds_prefix_space:
        arguments.append("add_prefix_space=True")
    if spec.trust_remote_code:
        arguments.append("trust_remote_code=True")
    lines = [code.call("tokenizer = AutoTokenizer.from_pretrained(", arguments)]
    if preparation.pad_token is not None:
        lines.append(f"    tokenizer.pad_token = {preparation.pad_token}")
    if preparation.model_input_names is not None:
        names = literal(list(preparation.model_input_names))
        lines.append("    # The model takes no more than these.")
        lines.append(f"    tokenizer.model_input_names = {names}")
    code.data.append("\n".join(lines))


def map_samples(
    code: JobCode, preparation: Preparation, length: str = 'len(row["input_ids"])'
) -> None:
    """Turns the raw rows into samples, and leaves out those that are too short."""
    names = preparation.column_names
    columns = "dataset.column_names" if names is None else literal(list(names))
    mapping = code.call(
        "dataset = dataset.map(", ["tokenize", "batched=True", f"remove_columns={columns}"]
    )
    if preparation.least_tokens is not None:
        condition = f"lambda row: {length} >= {preparation.least_tokens}"
        mapping += "\n" + code.call("dataset = dataset.filter(", [condition])
    code.data.append(mapping)


def collator(code: JobCode, preparation: Preparation, name: str, *arguments: str) -> None:
    """Pads with a collator of transformers, where there is a token to pad with."""
    if preparation.can_pad:
        code.imports.add("transformers", name)
        code.collator = code.call(f"data_collator = {name}(", ["tokenizer", *arguments])
    else:
        stack(code)


def stack(code: JobCode) -> None:
    """Rows of equal length, or single rows, need no padding."""
    code.imports.add("transformers", "default_data_collator")
    code.collator = "    data_collator = default_data_collator"


def model(
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


def lora(code: JobCode, spec: WorkloadSpec) -> None:
    """Puts adapters into the model, where they are asked for."""
    chosen = spec.lora
    if chosen is None:
        return
    code.imports.add("peft", "LoraConfig", "get_peft_model")
    options: dict[str, object] = {"r": chosen.rank}
    if spec.task in PEFT_TASKS:
        options = {"task_type": PEFT_TASKS[spec.task], **options}
    if chosen.alpha is not None:
        options["lora_alpha"] = chosen.alpha
    if chosen.dropout:
        options["lora_dropout"] = chosen.dropout
    if chosen.target_modules is not None:
        options["target_modules"] = list(chosen.target_modules)
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
