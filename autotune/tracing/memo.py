"""Remembers what operators answer on fake tensors, since a model asks the same over and over.

A fake operator is a function of the sizes, strides and types of its tensors and of its other
arguments. torch keeps such answers as well, but spends most of the time on telling calls apart;
here a tensor's description is looked up once in its life.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_DESCRIPTION = "_autotune_description"
_PLAIN = (
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    type(None),
)
_UNSTABLE = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)
_NEVER = frozenset({"aten::set_", "aten::resize_", "aten::resize_as_", "aten::lift_fresh"})

Key: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Output:
    """One tensor of an answer."""

    kind: Literal["new", "view", "argument", "none"]
    argument: int = -1
    """Place among the tensors of the arguments, for a view and for an argument itself."""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    dtype: torch.dtype | None = None
    description: int = -1


@dataclass(frozen=True, slots=True)
class _Answer:
    outputs: tuple[_Output, ...]
    container: type | None
    """tuple or list; None for a single tensor or nothing."""


class _CannotTell(Exception):
    """An argument whose description does not suffice."""


class Memo:
    """Answers of one mode.

    Args:
        mode: Whose tensors are asked about; all stand for tensors of a CPU.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._device = torch.device("cpu")
        self._descriptions: dict[Key, int] = {}
        self._answers: dict[Key, _Answer | None] = {}
        """None where the answer cannot be made again from what is known of it."""
        self._is_stable: dict[object, bool] = {}

    def ask(
        self, func: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        """What the operator answers; computed where it is not known yet."""
        is_stable = self._is_stable.get(func)
        if is_stable is None:
            is_stable = self._is_stable[func] = _is_stable(func)
        tensors: list[FakeTensor] = []
        if is_stable:
            try:
                key: Key = (func, self._key(args, tensors), self._key(kwargs.items(), tensors))
            except _CannotTell:
                return func(*args, **kwargs)
            answer = self._answers.get(key)
            if answer is not None:
                return self._made(answer, tensors)
            result = func(*args, **kwargs)
            if key not in self._answers:
                self._answers[key] = self._described(result, tensors)
            return result
        result = func(*args, **kwargs)
        # It may have given its arguments another shape.
        for argument in args:
            if isinstance(argument, FakeTensor) and hasattr(argument, _DESCRIPTION):
                delattr(argument, _DESCRIPTION)
        return result

    def _key(self, arguments: object, tensors: list[FakeTensor]) -> Key:
        found: list[object] = []
        for argument in arguments:  # type: ignore[attr-defined]
            if isinstance(argument, FakeTensor):
                found.append(self._description(argument))
                tensors.append(argument)
            elif isinstance(argument, list | tuple):
                found.append((type(argument), self._key(argument, tensors)))
            elif isinstance(argument, bool | int | float):
                # Equal numbers of unequal types are not the same to an operator.
                found.append((type(argument), argument))
            elif isinstance(argument, _PLAIN):
                found.append(argument)
            else:
                raise _CannotTell
        return tuple(found)

    def _description(self, tensor: FakeTensor) -> int:
        known: int | None = getattr(tensor, _DESCRIPTION, None)
        if known is not None:
            return known
        if (
            tensor.constant is not None
            or tensor.layout is not torch.strided
            or tensor.fake_device.type != "cpu"
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            raise _CannotTell
        key = (
            tuple(tensor.shape),
            tensor.stride(),
            tensor.storage_offset(),
            tensor.dtype,
        )
        number = self._descriptions.setdefault(key, len(self._descriptions))
        setattr(tensor, _DESCRIPTION, number)
        return number

    def _described(self, result: object, tensors: list[FakeTensor]) -> _Answer | None:
        container = type(result) if isinstance(result, list | tuple) else None
        leaves = result if isinstance(result, list | tuple) else (result,)
        outputs = []
        for leaf in leaves:
            output = self._output(leaf, tensors)
            if output is None:
                return None
            outputs.append(output)
        return _Answer(tuple(outputs), container)

    def _output(self, leaf: object, tensors: list[FakeTensor]) -> _Output | None:
        if leaf is None:
            return _Output("none")
        if not isinstance(leaf, FakeTensor) or leaf.requires_grad:
            return None
        for place, tensor in enumerate(tensors):
            if leaf is tensor:
                return _Output("argument", place)
        try:
            description = self._description(leaf)
        except _CannotTell:
            return None
        shape, stride, dtype = tuple(leaf.shape), leaf.stride(), leaf.dtype
        storage = leaf.untyped_storage()
        for place, tensor in enumerate(tensors):
            if tensor.untyped_storage()._cdata == storage._cdata:
                return _Output(
                    "view", place, shape, stride, int(leaf.storage_offset()), dtype, description
                )
        if (
            leaf.storage_offset()
            or storage.nbytes() != self._empty(shape, stride, dtype).untyped_storage().nbytes()
        ):
            return None
        return _Output("new", -1, shape, stride, 0, dtype, description)

    def _made(self, answer: _Answer, tensors: list[FakeTensor]) -> object:
        made = [self._tensor(output, tensors) for output in answer.outputs]
        if answer.container is None:
            return made[0]
        return made if answer.container is list else tuple(made)

    def _tensor(self, output: _Output, tensors: list[FakeTensor]) -> FakeTensor | None:
        if output.kind == "none":
            return None
        if output.kind == "argument":
            return tensors[output.argument]
        assert output.dtype is not None
        meta = self._empty(output.shape, output.stride, output.dtype)
        if output.kind == "view":
            storage = tensors[output.argument].untyped_storage()
            with torch._C._DisableTorchDispatch():
                meta.set_(storage, output.offset, output.shape, output.stride)
        tensor = FakeTensor(self._mode, meta, self._device)
        setattr(tensor, _DESCRIPTION, output.description)
        return tensor

    def _empty(
        self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        with torch._C._DisableTorchDispatch():
            return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _is_stable(func: torch._ops.OpOverload) -> bool:
    return (
        isinstance(func, torch._ops.OpOverload)
        and not any(tag in func.tags for tag in _UNSTABLE)
        and func._schema.name not in _NEVER
        and func.namespace != "prim"
    )
