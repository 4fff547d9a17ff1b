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
import logging
import pickle
import random
import types
from collections.abc import Iterable, Mapping, Sized
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from autotune.workload.live.job import Job, MakeTrainer

_DEPTH = 8
_NUM_ITEMS = 64
"""Items that a long sequence is known by."""
_MAX_HASHED_BYTES = 1 << 20
_MAX_PICKLED_BYTES = 1 << 26
"""What is told of a table or another object that keeps what it holds to itself."""
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
        "dataset": describe(job.train_dataset),
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
        case np.ndarray() | np.generic():
            return _array(np.asarray(value), depth)
        case types.ModuleType():
            return value.__name__
        case logging.Logger():
            return value.name
        case random.Random() | np.random.Generator() | np.random.RandomState() | torch.Generator():
            # Where it stands changes from call to call.
            return type(value).__qualname__
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
    libraries = {kind.__module__.partition(".")[0] for kind in type(value).__mro__}
    if "datasets" in libraries and isinstance(getattr(value, "_fingerprint", None), str):
        return [describe(type(value)), value._fingerprint]  # type: ignore[attr-defined]
    if "transformers" in libraries and isinstance(value, Sized) and hasattr(value, "name_or_path"):
        return [type(value).__qualname__, str(value.name_or_path), len(value)]
    state = _state(value)
    if not state and not _is_of_the_user(type(value)):
        # A table, a date or the like, which keeps what it holds to itself.
        return [describe(type(value), depth - 1), _pickled(value)]
    return [describe(type(value), depth - 1), describe(state, depth - 1)]


def _is_of_the_user(kind: type) -> bool:
    """Whether a class is code that must not be run here: neither built in nor installed."""
    try:
        place = inspect.getfile(kind)
    except (TypeError, OSError):
        place = ""
    is_written_here = place.endswith(".py") and "-packages" not in place
    return is_written_here or kind.__module__ == "__main__"


def _state(value: object) -> Mapping[str, object]:
    """The attributes of an object, those in slots too."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    slots = {
        name: slot.__get__(value)
        for kind in type(value).__mro__
        for name, slot in vars(kind).items()
        if isinstance(slot, types.MemberDescriptorType) and _is_set(slot, value)
    }
    return {**slots, **getattr(value, "__dict__", {})}


def _is_set(slot: types.MemberDescriptorType, value: object) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


class _Digest:
    """A file that is hashed instead of kept, up to a size."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._room = _MAX_PICKLED_BYTES

    def write(self, data: bytes | pickle.PickleBuffer) -> int:
        """Takes what still has room."""
        view = memoryview(data).cast("B")
        self.hash.update(view[: self._room])
        self._room -= len(view)
        if self._room <= 0:
            raise _EnoughError
        return len(view)


class _EnoughError(Exception):
    """What was written tells it well enough."""


def _pickled(value: object) -> str | None:
    """The hash of what pickling writes; None where nothing can be written."""
    digest = _Digest()
    try:
        pickle.Pickler(digest, protocol=5).dump(value)
    except _EnoughError:
        pass
    except Exception:  # noqa: BLE001  (whatever pickling raises: it is known by its class alone)
        return None
    return digest.hash.hexdigest()


def _items(items: Iterable[tuple[str, object]], count: int) -> object:
    return [count, sorted(([k, v] for k, v in items), key=lambda pair: str(pair[0]))]


def _spread(items: list[object] | tuple[object, ...]) -> Iterable[object]:
    return [items[i] for i in _places(len(items))]


def _tensor(tensor: torch.Tensor) -> object:
    known = [list(tensor.shape), str(tensor.dtype)]
    if tensor.numel() * tensor.element_size() <= _MAX_HASHED_BYTES and tensor.device.type == "cpu":
        flat = tensor.detach().contiguous().reshape(-1)
        return [*known, _hash(bytes(flat.view(torch.uint8).tolist()))]
    return known


def _array(array: np.ndarray[Any, Any], depth: int) -> object:
    known = [list(array.shape), str(array.dtype)]
    if array.dtype.hasobject:
        return [*known, describe([array.flat[i] for i in _places(array.size)], depth)]
    if array.nbytes <= _MAX_HASHED_BYTES:
        return [*known, _hash(array.tobytes())]
    return [*known, _hash(b"".join(array.flat[i].tobytes() for i in _places(array.size)))]


def _places(size: int) -> Iterable[int]:
    """Where to look at something long."""
    if size <= _NUM_ITEMS:
        return range(size)
    return [i * (size - 1) // (_NUM_ITEMS - 1) for i in range(_NUM_ITEMS)]


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
