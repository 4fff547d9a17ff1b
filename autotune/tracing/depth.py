"""Traces a deep model through a few of its layers, since equal layers do the same in turn.

Of a stack of equal layers, some in the middle are taken out while a step is traced. What is left
holds a group of layers twice, one after the other; where both copies of the group do the same to
the last byte, the notes of the whole stack are those of the short one with the first copy repeated.
Equal are layers that nothing about them or about their hooks tells apart but their number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from autotune.configuration import Checkpointing
from autotune.tracing.places import without_wrappers

LEAST_SPARED = 4
"""Fewer layers are not worth being spared."""
_MOST_PERIOD = 8
"""Layers after which their kinds repeat, as those of alternating kinds of attention do."""
_MOST_ODD = 4
"""Layers at the beginning that may be of another kind than all the others."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_NUMBERS = re.compile(r"idx|index|layer|_id$")
"""Attributes that may hold a layer's own number."""
_NEXT_TO_ENDS = 2
"""Layers before and after the groups: the outermost one, and one that is next to it."""


class Irregular(Exception):
    """The layers do not do the same; the message says where they part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Which layers of a stack are taken out. Layers are counted from 0."""

    path: str
    """Of the stack, without what wrappers put before it."""
    unit: int
    """Layers of a group."""
    first: int
    """First layer of the first group; the second one follows."""
    num_copies: int
    """Groups that are taken out between the two."""
    num_layers: int
    """Of the whole stack."""

    @property
    def num_spared(self) -> int:
        """Layers that are taken out."""
        return self.unit * self.num_copies

    @property
    def second(self) -> int:
        """First layer of the second group, in the short stack."""
        return self.first + self.unit

    @property
    def end(self) -> int:
        """The layer after both groups, in the short stack."""
        return self.first + 2 * self.unit

    def is_inside(self, layer: int | None) -> bool:
        """Whether a layer of the short stack is in one of the groups."""
        return layer is not None and self.first <= layer < self.end

    def whole(self, layer: int) -> int:
        """The place in the whole stack of a layer of the short one."""
        return layer if layer < self.second else layer + self.num_spared

    def short(self, layer: int) -> tuple[int, int]:
        """The layer of the short stack that stands for one of the whole stack, and which copy."""
        if layer < self.second:
            return layer, 0
        if layer < self.second + self.num_spared:
            copy, place = divmod(layer - self.first, self.unit)
            return self.first + place, copy
        return layer - self.num_spared, 0


def fold_of(model: torch.nn.Module, form: Checkpointing) -> Fold | None:
    """How the longest stack of a model may be cut short under a checkpointing form.

    None where there is no stack that is worth it.
    """
    found = _longest_stack(model)
    if found is None:
        return None
    path, stack = found
    lists = _lists_for_each(model, len(stack))
    kinds = [
        (_kind(layer, number), [entries[number] for entries in lists])
        for number, layer in enumerate(stack)
    ]
    for odd in range(_MOST_ODD + 1):
        for period in range(1, _MOST_PERIOD + 1):
            if all(kinds[i] == kinds[i + period] for i in range(odd, len(kinds) - period)):
                return _cut(without_wrappers(path), len(kinds), odd, period, form)
    return None


def _cut(path: str, num_layers: int, odd: int, period: int, form: Checkpointing) -> Fold | None:
    unit = math.lcm(period, form.every_n_layers or 1)
    first = odd + _NEXT_TO_ENDS
    num_copies = (num_layers - first - 2 * unit - _NEXT_TO_ENDS) // unit
    if num_copies * unit < LEAST_SPARED:
        return None
    return Fold(path=path, unit=unit, first=first, num_copies=num_copies, num_layers=num_layers)


@contextmanager
def folded(model: torch.nn.Module, fold: Fold | None) -> Iterator[None]:
    """The model with its stack cut short, inside the block."""
    found = _longest_stack(model) if fold is not None else None
    if fold is None or found is None:
        yield
        return
    path, stack = found
    parent = model.get_submodule(path.rpartition(".")[0])
    name = path.rpartition(".")[2]
    layers = list(stack)
    kept = [*layers[: fold.second], *layers[fold.second + fold.num_spared :]]
    before = [(module, {**vars(module)}, _hooks_of(module)) for module in model.modules()]
    parent._modules[name] = torch.nn.ModuleList(kept).train(stack.training)
    try:
        yield
    finally:
        parent._modules[name] = stack
        # A model may hook its layers in its first pass, and would take those for all that it has.
        for module, own, hooks in before:
            for key in vars(module).keys() - own.keys():
                delattr(module, key)
            for key, known in hooks.items():
                present = vars(module)[key]
                present.clear()
                present.update(known)


def _hooks_of(module: torch.nn.Module) -> dict[str, dict[object, object]]:
    return {
        key: dict(value)
        for key, value in vars(module).items()
        if "hooks" in key and isinstance(value, dict)
    }


def _longest_stack(model: torch.nn.Module) -> tuple[str, torch.nn.ModuleList] | None:
    """The longest list of modules that is in no other one, with its full path."""
    found: list[tuple[str, torch.nn.ModuleList]] = []
    for name, module in model.named_modules():
        is_list = type(module) is torch.nn.ModuleList
        if is_list and not any(name.startswith(f"{path}.") for path, _ in found):
            found.append((name, module))
    return max(found, key=lambda one: len(one[1]), default=None)


def _kind(layer: torch.nn.Module, number: int) -> object:
    """All that a layer is, as far as it decides what it does."""
    parts: list[object] = [repr(layer)]
    for name, module in layer.named_modules():
        plain = {
            key: "its own"
            if type(value) is int and value == number and _OF_NUMBERS.search(key)
            else value
            for key, value in vars(module).items()
            if isinstance(value, bool | int | float | str | None)
            and key not in ("gradient_checkpointing", "training")
        }
        tensors = [
            (key, tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
            for key, tensor in (*module._parameters.items(), *module._buffers.items())
            if tensor is not None
        ]
        hooks = [len(vars(module).get(key) or ()) for key in _HOOKS]
        parts.append((name, type(module), plain, tensors, hooks, "forward" in vars(module)))
    return parts


def _lists_for_each(model: torch.nn.Module, num_layers: int) -> list[Sequence[object]]:
    """Lists in the configs of a model that have an entry for each layer."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    return [
        value
        for config in configs.values()
        for value in getattr(config, "__dict__", {}).values()
        if isinstance(value, list | tuple) and len(value) == num_layers
    ]


def layer_in(path: str) -> re.Pattern[str]:
    """Finds the number of a layer in the paths of what is in a stack."""
    return re.compile(rf"^({re.escape(path)}\.)(\d+)(?=\.|$)")
