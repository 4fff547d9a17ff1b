"""Values of whole numbers and truths under fake tensors, as far as the batch determines them.

Models ask their masks whether there is padding, or count labels; fake tensors have no values to
answer with. The integers of a batch are few, so that they are kept beside the fake ones, and what
is computed of nothing but them is computed for real as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map

MOST_ELEMENTS = 2**23
"""Larger results are not computed."""
_NAME = "_autotune_value"

Scalar = bool | int | float


class Unknown(Exception):
    """A value that the batch alone does not determine."""


def with_value(mode: FakeTensorMode, real: torch.Tensor) -> FakeTensor:
    """The fake twin of a tensor; its value is kept where it is of whole numbers or truths."""
    fake = mode.from_tensor(real)
    if not real.is_floating_point() and not real.is_complex():
        setattr(fake, _NAME, real)
    return fake


def value_of(tensor: object) -> torch.Tensor:
    """The value of a fake tensor, or a real tensor itself.

    Raises:
        Unknown: It depends on more than the batch.
    """
    if isinstance(tensor, FakeTensor):
        value = getattr(tensor, _NAME, None)
        if value is None:
            raise Unknown
        return cast("torch.Tensor", value)
    assert isinstance(tensor, torch.Tensor)
    return tensor


def follow(
    func: torch._ops.OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    result: object,
) -> None:
    """Computes the value of an operator's result where all of its arguments have one."""
    if (
        not isinstance(result, FakeTensor)
        or result.is_floating_point()
        or result.numel() > MOST_ELEMENTS
    ):
        return
    try:
        setattr(result, _NAME, computed(func, args, kwargs))
    except Unknown:
        # In place, it may have had one before.
        if hasattr(result, _NAME):
            delattr(result, _NAME)


def computed(
    func: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """What an operator makes of the values of its arguments.

    Raises:
        Unknown: One of them has none, or the operator cannot be run.
    """
    real_args, real_kwargs = tree_map(
        lambda leaf: value_of(leaf) if isinstance(leaf, torch.Tensor) else leaf,
        (list(args), dict(kwargs)),
    )
    with no_dispatch():
        try:
            found = func(*real_args, **real_kwargs)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise Unknown from error
    leaves = found if isinstance(found, tuple) else (found,)
    if not all(isinstance(leaf, torch.Tensor) and not leaf.is_floating_point() for leaf in leaves):
        raise Unknown
    known: torch.Tensor | tuple[torch.Tensor, ...] = found
    return known


def places_of(truths: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Where a tensor of truths is true, by dimension.

    Raises:
        Unknown: The batch does not determine it.
    """
    with no_dispatch():
        return value_of(truths).nonzero(as_tuple=True)


def scalar(tensor: torch.Tensor) -> tuple[Scalar, bool]:
    """The number that a tensor of one element holds, and whether it is known.

    What is not known is taken to be False, or 1: checks for values that are no numbers find
    nothing, and no gradient is clipped.
    """
    try:
        with no_dispatch():
            value: Scalar = value_of(tensor).item()
    except Unknown:
        unknown: Scalar = (
            False if tensor.dtype is torch.bool else 1.0 if tensor.is_floating_point() else 1
        )
        return unknown, False
    return value, True
