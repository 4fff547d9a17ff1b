"""One name for a live job: the same for the same job in another process, without running any of it.

Nothing is called that belongs to the user: rows are not read, since reading one may draw random
numbers or take long. Long sequences are known by their length and by items spread over them.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import json
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath

import torch

from autotune.workload.live.job import Job, MakeTrainer

_DEPTH = 8
_NUM_ITEMS = 64
"""Items that a long sequence is known by."""
_MAX_HASHED_BYTES = 1 << 20
_LIBRARIES = ("torch", "transformers", "accelerate", "peft", "datasets")


def digest_of(job: Job | MakeTrainer) -> str:
    """Changes whenever model, data, training choices or libraries change, as far as can be seen.

    Values of weights do not count: they change neither speed nor memory.
    """
    described = _job(job) if isinstance(job, Job) else describe(job)
    text = json.dumps([described, _versions()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _job(job: Job) -> object:
    return {
        "model": _model(job.model),
        "dataset": _dataset(job.train_dataset),
        "optimizers": [_optimizer(part) for part in job.optimizers],
        **{
            field.name: describe(getattr(job, field.name))
            for field in fields(job)
            if field.name not in ("model", "train_dataset", "optimizers")
        },
    }


def _model(model: torch.nn.Module) -> object:
    config = getattr(model, "config", None)
    to_dict = getattr(config, "to_dict", None)
    return [
        describe(type(model)),
        repr(model),
        describe(to_dict()) if to_dict is not None else None,
        [
            [name, list(p.shape), str(p.dtype), p.requires_grad]
            for name, p in model.named_parameters()
        ],
    ]


def _dataset(dataset: object) -> object:
    fingerprint = getattr(dataset, "_fingerprint", None)
    if isinstance(fingerprint, str):
        return [describe(type(dataset)), fingerprint]
    return describe(dataset)


def _optimizer(part: object) -> object:
    if part is None:
        return None
    groups = getattr(part, "param_groups", None)
    if groups is None:
        return describe(type(part))
    options = [{k: v for k, v in group.items() if k != "params"} for group in groups]
    return [describe(type(part)), describe(options), [len(group["params"]) for group in groups]]


def describe(value: object, depth: int = _DEPTH) -> object:
    """Plain data that tells a value from another one, and is the same in every process."""
    match value:
        case None | bool() | int() | float() | str():
            return value if not isinstance(value, Enum) else str(value.value)
        case bytes():
            return _hash(value)
        case PurePath() | torch.dtype() | torch.device():
            return str(value)
        case torch.Tensor():
            return _tensor(value)
        case functools.partial():
            return [describe(value.func, depth), describe([value.args, value.keywords], depth - 1)]
        case types.MethodType():
            return [describe(value.__func__, depth), describe(value.__self__, depth - 1)]
        case type() | types.FunctionType():
            return _code(value, depth)
    if depth <= 0:
        return type(value).__qualname__
    match value:
        case Mapping():
            return _items(((str(k), describe(v, depth - 1)) for k, v in value.items()), len(value))
        case set() | frozenset():
            return sorted(json.dumps(describe(v, depth - 1), default=str) for v in value)
        case list() | tuple():
            return [len(value), [describe(item, depth - 1) for item in _spread(value)]]
    if isinstance(value, torch.nn.Module):
        return _model(value)
    if "tokenizer" in type(value).__name__.lower():
        return [type(value).__qualname__, str(getattr(value, "name_or_path", "")), len(value)]  # type: ignore[arg-type]
    state = (
        {field.name: getattr(value, field.name) for field in fields(value)}
        if is_dataclass(value)
        else getattr(value, "__dict__", {})
    )
    return [describe(type(value), depth - 1), describe(state, depth - 1)]


def _items(items: Iterable[tuple[str, object]], count: int) -> object:
    return [count, sorted(([k, v] for k, v in items), key=lambda pair: str(pair[0]))]


def _spread(items: list[object] | tuple[object, ...]) -> Iterable[object]:
    if len(items) <= _NUM_ITEMS:
        return items
    return [items[i * (len(items) - 1) // (_NUM_ITEMS - 1)] for i in range(_NUM_ITEMS)]


def _tensor(tensor: torch.Tensor) -> object:
    known = [list(tensor.shape), str(tensor.dtype)]
    if tensor.numel() * tensor.element_size() <= _MAX_HASHED_BYTES and tensor.device.type == "cpu":
        flat = tensor.detach().contiguous().reshape(-1)
        return [*known, _hash(bytes(flat.view(torch.uint8).tolist()))]
    return known


def _code(value: type | types.FunctionType, depth: int) -> object:
    """By name and, where it is not part of an installed package, by its code."""
    name = f"{value.__module__}.{value.__qualname__}"
    try:
        place = inspect.getfile(value)
    except (TypeError, OSError):
        place = ""
    if "site-packages" in place or not isinstance(value, types.FunctionType | type):
        return name
    try:
        source = inspect.getsource(value)
    except (OSError, TypeError):
        source = ""
    found: list[object] = [name, source]
    if isinstance(value, types.FunctionType) and depth > 0:
        found.append(_hash(value.__code__.co_code))
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        found.append(describe([cells, value.__defaults__, value.__kwdefaults__], depth - 1))
    return found


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (an empty cell raises)
    except ValueError:
        return False
    return True


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _versions() -> list[list[str]]:
    found = []
    for name in _LIBRARIES:
        try:
            found.append([name, importlib.metadata.version(name)])
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
