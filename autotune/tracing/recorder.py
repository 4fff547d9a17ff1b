"""Notes every storage of a step as it comes and goes, on fake tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autotune.cost.memory.trace import Phase
from autotune.tracing import shadows
from autotune.tracing.grouped import grouped_mm
from autotune.tracing.layers import Layers
from autotune.tracing.memo import Memo
from autotune.tracing.places import Places

_SCALAR = torch.ops.aten._local_scalar_dense.default
_ADD = torch.ops.aten.add.Tensor
_GROUPED_MM = getattr(getattr(torch.ops.aten, "_grouped_mm", None), "default", None)
_DEVICE = torch.ops.prim.device.default
_INTO_ZEROS = (
    torch.ops.aten.scatter_add.default,
    torch.ops.aten.index_add.default,
    torch.ops.aten.index_put.default,
)
"""What autograd does in place with real tensors, to zeros that it has just made."""
_PICKS = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default)
"""Operators that take what a list of indices picks."""
_JOINS = (torch.ops.aten.stack.default, torch.ops.aten.cat.default)
_MANY_LAYERS = 3
"""A layer has to do with its neighbour; what joins more has to do with the whole stack."""


class Note(NamedTuple):
    """A storage came or went."""

    storage: int
    """Counted over everything that was recorded."""
    is_free: bool
    num_bytes: int
    phase: Phase
    module: str
    operator: str
    in_forward_code: bool
    """Also where a forward pass is repeated in the backward pass."""
    width: int
    """Last dimension of the tensor that the storage was made for; 0 where it has none."""
    layer: int = -1
    """The layer that has begun last, or that what is stepped belongs to; -1 where none has."""
    most_bytes: int = 0
    """Where the storage stops to grow with the micro-batch; 0 where it does not."""


class Scratch(NamedTuple):
    """What a kernel allocates for itself."""

    num_bytes: int
    """As though it grew for good."""
    most_bytes: int = 0
    """Where it stops to grow with the micro-batch; 0 where it does not."""


Inside: TypeAlias = Callable[[Sequence[object]], Scratch | None]
"""What the kernel of an operator allocates for itself, by its arguments; None where nothing."""


class Recorder(TorchDispatchMode):
    """A dispatch mode that notes which storages come and go, and answers what has no answer.

    Entered inside a `FakeTensorMode`. Every storage that an operator returns is counted once, while
    anything refers to it.

    Args:
        mode: Whose tensors are recorded.
        places: Which module runs.
        memo: What is known of operators on tensors of the mode.
        layers: Which layer modules and weights are in.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled, so that nothing needs to be kept from it at every call."""
        return False

    def __init__(self, mode: FakeTensorMode, places: Places, memo: Memo, layers: Layers) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.notes: list[Note] = []
        self.phase: Phase = "setup"
        """Of what is neither forward nor backward; both of these are told from autograd."""
        self.num_unknown = 0
        """How often a value was asked for that the batch does not determine."""
        self.inside: Mapping[object, Inside] = {}
        """What kernels allocate for themselves, by their operators."""
        self._mode = mode
        self._memo = memo
        self._places = places
        self._numbers: dict[int, int] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._num_storages = 0
        self.joined: dict[int, Mapping[int, int]] = {}
        """Of storages that tensors of several layers were joined in, the bytes of each layer's."""
        self._layers = layers
        self._layer = -1
        self._layer_of: dict[int, int] = {}
        """By storage."""
        self._alone: tuple[int, int] | None = None
        """Holders of a gradient in autograd's hands alone."""

    def begin_step(self) -> None:
        """From here on, no layer has begun."""
        self._layer = -1

    @property
    def num_notes(self) -> int:
        """Place of the next note."""
        return len(self.notes)

    @property
    def num_storages(self) -> int:
        """Number of the next storage."""
        return self._num_storages

    def alive(self) -> frozenset[int]:
        """Numbers of the storages that are alive."""
        return frozenset(self._numbers.values())

    def number(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's storage; None where it was not recorded."""
        return self._numbers.get(tensor.untyped_storage()._cdata)

    def watch(self, tensors: Iterable[torch.Tensor]) -> None:
        """Notes storages that were made before, as allocated now."""
        for tensor in tensors:
            self._layer = self._layers.of_weight(tensor, self._layer)
            self._add(tensor, "", "")

    def watch_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes what an optimizer has made before its first step."""
        self.phase = "optimizer"
        for parameter, entries in optimizer.state.items():
            self._layer = self._layers.of_weight(parameter, self._layer)
            for value in entries.values():
                if isinstance(value, torch.Tensor):
                    self._add(value, "", "")
        self.phase = "setup"

    def _come_and_go(self, scratch: Scratch, module: str, operator: str) -> None:
        number = self._num_storages
        self._num_storages += 1
        for is_free in (False, True):
            self._note(number, scratch.num_bytes, module, operator, 0, is_free=is_free)
            self.notes[-1] = self.notes[-1]._replace(most_bytes=scratch.most_bytes)

    def _note(
        self, number: int, num_bytes: int, module: str, operator: str, width: int, *, is_free: bool
    ) -> None:
        places = self._places
        phase = self.phase
        if phase in ("forward", "backward"):
            phase = "backward" if places.is_backward else "forward"
        self.notes.append(
            Note(
                number,
                is_free,
                num_bytes,
                phase,
                module,
                operator,
                places.is_forward_code,
                width,
                self._layer,
            )
        )

    def _add(self, tensor: torch.Tensor, module: str, operator: str) -> None:
        if tensor.layout is torch.sparse_coo:
            self._add(tensor._indices(), module, operator)
            self._add(tensor._values(), module, operator)
            return
        if tensor.layout is not torch.strided:
            return  # Opaque layouts have no storage that could be looked at.
        storage = tensor.untyped_storage()
        key = storage._cdata
        num_bytes = storage.nbytes()
        if num_bytes == 0 or key in self._numbers:
            return
        number = self._num_storages
        self._num_storages += 1
        width = tensor.shape[-1] if tensor.ndim else 0
        self._numbers[key] = number
        self._layer_of[number] = self._layer
        self._references[key] = weakref.ref(
            storage, partial(self._gone, key, number, num_bytes, width)
        )
        self._note(number, num_bytes, module, operator, width, is_free=False)

    def _gone(self, key: int, number: int, num_bytes: int, width: int, _: object) -> None:
        if self._numbers.pop(key, None) is not None:
            del self._references[key]
            if self.phase == "optimizer":
                self._layer = self._layer_of[number]
            self._note(number, num_bytes, "", "", width, is_free=True)

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Runs the operator and notes the storages of what it returned."""
        # Meta kernels are written in torch's own functions, which nobody may substitute.
        with torch._C.DisableTorchFunction():
            return self._run(func, args, kwargs or {})

    def _run(
        self, func: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            # Asked for twice an operator, and answered at length by the mode below.
            return args[0].fake_device
        if func is _SCALAR and isinstance(args[0], torch.Tensor):
            value, is_known = shadows.scalar(args[0])
            self.num_unknown += not is_known
            return value
        module = self._places.note()
        if self.phase != "optimizer":
            self._layer = self._layers.of_module(module, self._layer)
        if self._is_sum_of_gradients(func, args, kwargs):
            return self._summed(args, module)
        if func in _INTO_ZEROS and self._is_into_zeros(args[0]):
            return args[0]
        try:
            result = (
                grouped_mm(*args, **kwargs)  # type: ignore[arg-type]
                if func is _GROUPED_MM
                else self._memo.ask(func, args, kwargs)
            )
        except (DynamicOutputShapeException, DataDependentOutputException):
            result = self._by_value(func, args, kwargs)
        else:
            shadows.follow(func, args, kwargs, result)
        if isinstance(result, torch.Tensor):
            self._find_layer(args, 0)
            self._add(result, module, func._schema.name)
            self._look_at_joined(func, args, result)
        elif result is not None:
            for place, leaf in enumerate(tree_leaves(result)):
                if isinstance(leaf, torch.Tensor):
                    self._find_layer(args, place)
                    self._add(leaf, module, func._schema.name)
        inside = self.inside.get(func)
        if inside is not None and (scratch := inside(args)) is not None:
            self._come_and_go(scratch, module, func._schema.name)
        return result

    def _find_layer(self, args: Sequence[object], place: int) -> None:
        """While weights are stepped, what is made of one of them belongs to its layer."""
        if self.phase != "optimizer" or not self._layers.has_any:
            return
        for argument in args:
            if isinstance(argument, list | tuple) and place < len(argument):
                argument = argument[place]
            if isinstance(argument, torch.Tensor):
                number = self.number(argument)
                layer = -1 if number is None else self._layer_of[number]
                if layer >= 0:
                    self._layer = layer
                    return

    def _look_at_joined(
        self, func: torch._ops.OpOverload, args: Sequence[object], result: torch.Tensor
    ) -> None:
        """Notes what a storage has of every layer, where it was made of several."""
        if not self._layers.has_any or not args:
            return
        number = self.number(result)
        if number is None:
            return
        if func in _JOINS and isinstance(args[0], list | tuple):
            parts: dict[int, int] = {}
            for tensor in args[0]:
                made = self.number(tensor)
                layer = -1 if made is None else self._layer_of[made]
                num_bytes = tensor.numel() * tensor.element_size()
                parts[layer] = parts.get(layer, 0) + num_bytes
            if len(parts) >= _MANY_LAYERS:
                self.joined[number] = parts
        elif self.joined and isinstance(args[0], torch.Tensor) and result.ndim:
            of = self.number(args[0])
            if of in self.joined and of != number:
                self.joined[number] = self.joined[of]

    def _is_sum_of_gradients(
        self, func: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> bool:
        return (
            func is _ADD
            and len(args) == 2
            and not kwargs
            and self._places.is_backward
            and not self._places.is_forward_code
            and getattr(args[0], "shape", None) == getattr(args[1], "shape", ())
        )

    def _is_into_zeros(self, tensor: object) -> bool:
        """Whether autograd adds to what was made last, as the gradients of `gather` are."""
        return (
            isinstance(tensor, torch.Tensor)
            and self._places.is_backward
            and not self._places.is_forward_code
            and self.number(tensor) == self._num_storages - 1
        )

    def _summed(self, args: Sequence[object], module: str) -> object:
        """Adds up two gradients of the same tensor as autograd would do with real ones.

        Autograd adds in place to a gradient that nobody else holds, but never to one of a subclass.
        """
        holders = _holders(args[0])
        if self._alone is None:
            self._alone = holders
        if holders == self._alone:
            return args[0]
        result = self._memo.ask(_ADD, args, {})
        assert isinstance(result, torch.Tensor)
        self._add(result, module, _ADD._schema.name)
        return result

    def calibrate(self) -> None:
        """Finds out how often a gradient is held here that nobody else holds.

        To be called before anything else, and while the mode is entered.
        """
        leaf = torch.ones(1, requires_grad=True)
        both = leaf * 1.0
        torch.autograd.backward((both * 2.0).sum() + (both * 3.0).sum())
        del leaf, both
        self.notes.clear()

    def _by_value(
        self, func: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        """An operator whose result has a shape that values decide."""
        try:
            if func in _PICKS:
                return func(args[0], self._places_of(args[1]), *args[2:], **kwargs)
            value = shadows.computed(func, args, kwargs)
        except shadows.Unknown:
            # Its own error names the operator.
            return func(*args, **kwargs)
        if isinstance(value, tuple):
            return tuple(shadows.with_value(self._mode, one) for one in value)
        return shadows.with_value(self._mode, value)

    def _places_of(self, indices: object) -> list[object]:
        """Indices with the places of truths instead of the truths.

        Raises:
            Unknown: The batch does not determine them.
        """
        assert isinstance(indices, list | tuple)
        found: list[object] = []
        for index in indices:
            if isinstance(index, torch.Tensor) and index.dtype is torch.bool:
                found += (
                    shadows.with_value(self._mode, places) for places in shadows.places_of(index)
                )
            else:
                found.append(index)
        return found


def _holders(tensor: object) -> tuple[int, int]:
    """How many hold a tensor, and how many its storage."""
    assert isinstance(tensor, torch.Tensor)
    storage = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(storage._cdata)  # type: ignore[attr-defined]
