"""Values of evenly spaced numbers while a model is built on fake tensors.

Models read rates of their layers off such numbers, one by one; fake tensors have none to give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_NAME = "_autotune_numbers"
_SCALAR = torch.ops.aten._local_scalar_dense.default
_SOURCES = (torch.ops.aten.linspace.default,)


class Numbers(TorchDispatchMode):
    """A dispatch mode that follows the numbers; entered inside a `FakeTensorMode`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Runs the operator; what is made of known numbers alone is known as well."""
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        is_known = all(hasattr(tensor, _NAME) for tensor in tensors)
        if func is _SCALAR and is_known:
            with no_dispatch():
                number: float = getattr(tensors[0], _NAME).item()
                return number
        result = func(*args, **kwargs)
        if is_known and (tensors or func in _SOURCES):
            real_args, real_kwargs = tree_map(_numbers, (list(args), dict(kwargs)))
            with no_dispatch():
                known = func(*real_args, **real_kwargs)
            for fake, real in zip(tree_leaves(result), tree_leaves(known), strict=True):
                if isinstance(fake, FakeTensor):
                    setattr(fake, _NAME, real)
        return result


def _numbers(value: object) -> object:
    return getattr(value, _NAME) if isinstance(value, torch.Tensor) else value
