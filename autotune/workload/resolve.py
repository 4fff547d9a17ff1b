"""Makes a spec complete and absolute, and finds what is wrong with it before torch is loaded."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from autotune.errors import UsageError, WorkloadError
from autotune.workload import demo, hub
from autotune.workload.columns import choose
from autotune.workload.header import header_of
from autotune.workload.source import source_of
from autotune.workload.spec import Workload, WorkloadSpec

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


def resolve(workload: Workload, scratch: Path, working_directory: Path) -> Workload:
    """The workload as a child process takes it; live objects stay as they were captured.

    Raises:
        UsageError: A choice that no model could follow, or live objects that are gone.
        WorkloadError: A model, a dataset or a column is not there.
    """
    if isinstance(workload, WorkloadSpec):
        return resolve_spec(workload, scratch, working_directory)
    if not (scratch / workload.file).exists():
        raise UsageError(
            "The live objects of this run are gone; they are kept only while it goes on.",
            "Call autotune.tune() again in the script or notebook that made them.",
        )
    return workload


def resolve_spec(spec: WorkloadSpec, scratch: Path, working_directory: Path) -> WorkloadSpec:
    """The same workload with absolute paths; the demo written out below `scratch`.

    Resolving twice changes nothing. Loads neither torch nor transformers.

    Args:
        spec: As the user gave it.
        scratch: A directory of the run that may be written.
        working_directory: What relative paths are relative to.

    Raises:
        UsageError: A choice that no model could follow.
        WorkloadError: A model, a dataset or a column is not there.
    """
    _check_choices(spec)
    if spec.demo:
        return demo.materialise(spec, scratch.absolute())
    _check_there_is_one_model(spec)
    if spec.dataset is None:
        raise WorkloadError("No dataset was given.", "Name one with --dataset, or try --demo.")
    faults = place_faults(spec, working_directory)
    if faults:
        raise together([*faults.values()])
    spec = replace(
        spec,
        model=_place(spec.model, working_directory, "model", "model"),
        model_config=_place(spec.model_config, working_directory, "model", "model config"),
        tokenizer=_place(spec.tokenizer, working_directory, "model", "tokenizer"),
        dataset=_place(spec.dataset, working_directory, "dataset", "dataset"),
    )
    source_of(spec)
    columns = header_of(spec)
    if columns is not None:
        choose(spec.columns, spec.task, columns)
    return spec


def resolve_data(spec: WorkloadSpec, working_directory: Path) -> WorkloadSpec:
    """The same workload with an absolute path of its data, whatever its model.

    Raises:
        WorkloadError: The data are not there, or nothing reads them.
    """
    spec = replace(spec, dataset=_place(spec.dataset, working_directory, "dataset", "dataset"))
    source_of(spec)
    return spec


def place_faults(spec: WorkloadSpec, working_directory: Path) -> dict[str, WorkloadError]:
    """What a workload names and is not there, or is not what it should be: all of it.

    Args:
        spec: As the user gave it.
        working_directory: What relative paths are relative to.

    Returns:
        Errors by what was named: model, model config, tokenizer or dataset.
    """
    found: dict[str, WorkloadError] = {}
    named: tuple[tuple[str | None, Literal["model", "dataset"], str], ...] = (
        (spec.model, "model", "model"),
        (spec.model_config, "model", "model config"),
        (spec.tokenizer, "model", "tokenizer"),
        (spec.dataset, "dataset", "dataset"),
    )
    for value, kind, what in named:
        try:
            place = _place(value, working_directory, kind, what)
            if what in ("model", "model config"):
                check_config(place)
            if what == "model":
                _check_weights(place)
        except WorkloadError as error:
            found[what] = error
    return found


def together(faults: Sequence[WorkloadError]) -> WorkloadError:
    """Several faults as one error, for whoever can be told only one."""
    remedies = dict.fromkeys(fault.remedy for fault in faults if fault.remedy)
    return WorkloadError(" ".join(fault.cause for fault in faults), " ".join(remedies) or None)


def resolve_model(spec: WorkloadSpec, working_directory: Path) -> WorkloadSpec:
    """The same workload with an absolute path of its model, whatever its data.

    Raises:
        UsageError: A choice that no model could follow, or no model.
        WorkloadError: The model is not there.
    """
    _check_choices(spec)
    _check_there_is_one_model(spec)
    spec = replace(
        spec,
        model=_place(spec.model, working_directory, "model", "model"),
        model_config=_place(spec.model_config, working_directory, "model", "model config"),
    )
    for place in (spec.model, spec.model_config):
        check_config(place)
    return spec


def _check_there_is_one_model(spec: WorkloadSpec) -> None:
    if (spec.model is None) == (spec.model_config is None):
        raise UsageError(
            "A model is given by either --model or --model-config."
            if spec.model
            else "No model was given.",
            "Name one with --model, or --model-config for random weights, or try --demo.",
        )


def _check_choices(spec: WorkloadSpec) -> None:
    if spec.packing and spec.task not in ("causal-lm", "masked-lm"):
        raise UsageError(
            f"Packing joins texts, which the task {spec.task} does not allow.",
            "Leave out --packing.",
        )
    if spec.max_length is not None and spec.max_length < 2:
        raise UsageError(
            f"A maximum length of {spec.max_length} tokens leaves nothing to train on.",
            "Give --max-length 2 or more.",
        )
    if spec.learning_rate is not None and not 0 < spec.learning_rate < float("inf"):
        raise UsageError(
            f"The learning rate {spec.learning_rate} is not a positive number.",
            "Give --learning-rate a value such as 5e-5.",
        )
    if spec.lora is not None and spec.lora.rank < 1:
        raise UsageError(f"A LoRA rank of {spec.lora.rank} is below 1.", "Give a rank such as 8.")


def _place(
    value: str | None, working_directory: Path, kind: Literal["model", "dataset"], what: str
) -> str | None:
    """An absolute path where something is there, else a hub name as it stands."""
    if value is None:
        return None
    path = working_directory / Path(value).expanduser()
    # Path.exists raises where a name is too long.
    if os.path.exists(path):
        return str(path.absolute())
    looks_like_path = (
        value.startswith((".", "/", "~")) or value.count("/") > 1 or Path(value).suffix in _ENDINGS
    )
    if looks_like_path or not _HUB_NAME.fullmatch(value):
        raise WorkloadError(
            f"The {what} {value} does not exist.",
            _near(path) or f"Check the path; it is looked for in {working_directory}.",
        )
    hub.require(value, kind, what, _near(path))
    return value


_ENDINGS = (
    ".csv",
    ".tsv",
    ".json",
    ".jsonl",
    ".ndjson",
    ".parquet",
    ".arrow",
    ".txt",
    ".safetensors",
)


_WEIGHTS = (".safetensors", ".bin")


def _near(path: Path) -> str | None:
    try:
        names = os.listdir(path.parent)
    except OSError:
        return None
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"Did you mean {path.parent / near[0]}?" if near else None


def check_config(place: str | None) -> None:
    """Raises where a place that is here holds no config of a model.

    Raises:
        WorkloadError: That is so.
    """
    if place is None:
        return
    path = Path(place)
    # What may not be entered is told as such by whoever opens it.
    is_directory, may_enter = os.path.isdir(path), os.access(path, os.X_OK)
    if is_directory and may_enter and not os.path.isfile(path / "config.json"):
        raise WorkloadError(
            f"The directory {path} has no config.json, so that it is not a model of transformers.",
            _nested_config(path) or "Give the directory that `save_pretrained` wrote.",
        )
    if os.path.exists(path):
        check_is_config(path / "config.json" if is_directory else path)


def check_is_config(file: Path) -> None:
    """Raises where a file is no JSON object, so that transformers could not read it either.

    Raises:
        WorkloadError: That is so.
    """
    try:
        config = json.loads(file.read_bytes())
    except OSError as error:
        raise WorkloadError(
            f"The model config {file} cannot be read: {error.strerror}.", "Check the path."
        ) from error
    except ValueError as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise WorkloadError(
            f"The model config {file} is not valid JSON{where}.",
            "Give the config.json that `save_pretrained` wrote.",
        ) from error
    if not isinstance(config, dict):
        raise WorkloadError(
            f"The model config {file} holds no settings of a model.",
            "Give the config.json that `save_pretrained` wrote.",
        )


def _check_weights(model: str | None) -> None:
    if model is None or not os.path.exists(model):
        return
    if not os.path.isdir(model):
        raise WorkloadError(
            f"The model {model} is a file.",
            "Give the directory that holds config and weights, or --model-config for a config "
            "with random weights.",
        )
    if os.access(model, os.R_OK) and not any(name.endswith(_WEIGHTS) for name in os.listdir(model)):
        raise WorkloadError(
            f"The directory {model} has a config.json, but no weights.",
            "Give --model-config instead of --model to train from random weights.",
        )


def _nested_config(path: Path) -> str | None:
    found = sorted(child.parent for child in path.glob("*/config.json"))
    return f"Did you mean {found[-1]}?" if found else None
