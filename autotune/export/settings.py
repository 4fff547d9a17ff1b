"""The fields of TrainingArguments that a bundle sets, and the three files that carry them.

Only what differs from the library's defaults is written, and the knobs themselves, which a reader
merges into settings of his own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import yaml

from autotune.errors import ExportError
from autotune.export.bundle import Bundle
from autotune.export.installed import Installed, checkpointing_options

DEFAULT_SEED = 42
_MAY_BE_NONE = ("ddp_find_unused_parameters",)
"""Fields of three values, whose flag is nothing without one."""

Fields = dict[str, object]
"""Field of TrainingArguments → plain value."""


def knob_fields(bundle: Bundle, installed: Installed) -> Fields:
    """The fields that put the configuration in force, in the names of the installed version.

    Raises:
        ExportError: The installed version has no name for a part of the configuration.
    """
    configuration = bundle.configuration
    checkpointing = configuration.checkpointing
    fields: Fields = {
        "per_device_train_batch_size": configuration.micro_batch_size,
        "gradient_accumulation_steps": configuration.accumulation_steps,
    }
    if bundle.evaluation_batch_size is not None:
        fields["per_device_eval_batch_size"] = bundle.evaluation_batch_size
    if bundle.has_cpu_ranks:
        fields["use_cpu"] = True
    fields.update(rank_fields(bundle, installed))
    name = installed.checkpointing_argument
    if checkpointing.is_on:
        options = checkpointing_options(checkpointing)
        missing = sorted(set(options) - installed.model_switch_options)
        if missing:
            raise ExportError(
                f"transformers {installed.version('transformers')} has no {missing[0]} for "
                "checkpointing.",
                "Export with the version that the run was measured with.",
            )
        fields[name] = True
        fields[f"{name}_kwargs"] = {"use_reentrant": False, **options}
    elif bundle.baseline.checkpointing.is_on:
        fields[name] = False
    return fields


def rank_fields(bundle: Bundle, installed: Installed) -> Fields:
    """What several ranks need beside the knobs, as far as the installed version knows it.

    Local SGD itself is no field: a callback averages the parameters.
    """
    if not bundle.has_ranks:
        return {}
    fields: Fields = {}
    if bundle.uses_local_sgd:
        # Counting the tokens of all ranks is a collective in every optimizer step.
        fields["average_tokens_across_devices"] = False
    if bundle.has_unused_parameters:
        # By itself a Trainer looks for them only without checkpointing.
        fields["ddp_find_unused_parameters"] = True
    if bundle.is_stream:
        # Else rank 0 reads for all and sends every batch to them.
        fields["accelerator_config"] = {"dispatch_batches": False}
    return {name: value for name, value in fields.items() if name in installed.argument_names}


def job_fields(bundle: Bundle, installed: Installed) -> Fields:
    """The fields that belong to the job, where they differ from the defaults."""
    spec = bundle.workload
    fields: Fields = {}
    if spec is None:
        # The arguments of live objects stay where they are; only the knobs are merged into them.
        return fields
    if spec.precision != "fp32":
        fields[spec.precision] = True
        if bundle.device_type == "cpu":
            # Without it TrainingArguments takes 16-bit training for a device that is missing.
            fields["use_cpu"] = True
    if spec.optim is not None and spec.optim != installed.default_optim:
        fields["optim"] = spec.optim
    if spec.learning_rate is not None:
        fields["learning_rate"] = float(spec.learning_rate)
    if spec.seed != DEFAULT_SEED:
        fields["seed"] = spec.seed
    if bundle.total_steps is not None:
        fields["max_steps"] = bundle.total_steps
    return fields


def all_fields(bundle: Bundle, installed: Installed) -> Fields:
    """The knobs, then the job."""
    return {**knob_fields(bundle, installed), **job_fields(bundle, installed)}


def as_json(fields: Fields) -> str:
    """`training_arguments.json`: nothing but the fields, since unknown keys are refused."""
    return json.dumps(fields, indent=2) + "\n"


def as_yaml(fields: Fields, comments: tuple[str, ...]) -> str:
    """`training_arguments.yaml`: the fields below comments that say where they come from."""
    head = "".join(f"# {comment}\n" for comment in comments)
    text: str = yaml.safe_dump(fields, sort_keys=False)
    return head + text


def as_flags(fields: Fields) -> list[str]:
    """The fields as command line flags; no flag holds a space, since args files are split there."""
    flags = []
    for name, value in fields.items():
        if value is True and name not in _MAY_BE_NONE:
            flags.append(f"--{name}")
        elif isinstance(value, Mapping):
            flags += [f"--{name}", json.dumps(value, separators=(",", ":"))]
        else:
            flags += [f"--{name}", str(value)]
    return flags


def as_args(fields: Fields) -> str:
    """`train.args`: one line of flags."""
    return " ".join(as_flags(fields)) + "\n"


def verify_json(path: Path, fields: Fields) -> str:
    """Reads the file through HfArgumentParser and compares every field.

    Raises:
        ValueError: The parser refuses the file, or a value is not what was meant.
    """
    from transformers import HfArgumentParser, TrainingArguments

    (arguments,) = HfArgumentParser((TrainingArguments,)).parse_json_file(str(path))
    _compare(arguments, fields, set(json.loads(path.read_text(encoding="utf-8"))))
    return "HfArgumentParser.parse_json_file"


def verify_yaml(path: Path, fields: Fields) -> str:
    """As `verify_json`, for the YAML file."""
    from transformers import HfArgumentParser, TrainingArguments

    (arguments,) = HfArgumentParser((TrainingArguments,)).parse_yaml_file(str(path))
    _compare(arguments, fields, set(yaml.safe_load(path.read_text(encoding="utf-8"))))
    return "HfArgumentParser.parse_yaml_file"


def verify_args(path: Path, fields: Fields) -> str:
    """As `verify_json`, for the file of flags."""
    from transformers import HfArgumentParser, TrainingArguments

    parser = HfArgumentParser((TrainingArguments,))
    (arguments,) = parser.parse_args_into_dataclasses(args=[], args_filename=str(path))
    words = path.read_text(encoding="utf-8").split()
    _compare(arguments, fields, {word[2:] for word in words if word.startswith("--")})
    return "HfArgumentParser.parse_args_into_dataclasses(args_filename=…)"


def _compare(arguments: object, fields: Fields, written: set[str]) -> None:
    if written != set(fields):
        odd = ", ".join(sorted(written ^ set(fields)))
        raise ValueError(f"the file does not hold the fields that were meant: {odd}")
    for name, meant in fields.items():
        read = getattr(arguments, name)
        read = getattr(read, "value", read)
        if isinstance(meant, Mapping) and hasattr(read, "to_dict"):
            read = {key: read.to_dict().get(key) for key in meant}
        if read != meant or type(read) is not type(meant):
            raise ValueError(f"{name} is read as {read!r} and not as {meant!r}")
