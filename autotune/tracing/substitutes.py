"""Lets fake tensors of a CPU behave as real ones, or as those of another device, inside a block."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from autotune.tracing.attention import Attention, inside_kernels
from autotune.tracing.products import inside_products
from autotune.tracing.recorder import Recorder
from autotune.tracing.request import Target

Function = Callable[..., object]

_IN_FULL_PRECISION: tuple[Function, ...] = (
    functional.layer_norm,
    functional.group_norm,
    functional.softmax,
    functional.log_softmax,
    functional.cross_entropy,
    functional.nll_loss,
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.kl_div,
    functional.softplus,
    functional.cosine_similarity,
    torch.softmax,
    torch.log_softmax,
    torch.layer_norm,
    torch.pow,
    torch.exp,
    torch.log,
    torch.rsqrt,
    torch.sum,
    torch.cumsum,
    torch.cumprod,
    torch.prod,
    torch.norm,
    torch.reciprocal,
    torch.Tensor.softmax,
    torch.Tensor.log_softmax,
    torch.Tensor.pow,
    torch.Tensor.__pow__,
    torch.Tensor.exp,
    torch.Tensor.log,
    torch.Tensor.rsqrt,
    torch.Tensor.sum,
    torch.Tensor.cumsum,
    torch.Tensor.cumprod,
    torch.Tensor.prod,
    torch.Tensor.norm,
)
"""What autocast computes in fp32 on CUDA and leaves as it comes on a CPU."""


@contextmanager
def as_real() -> Iterator[None]:
    """Lets transformers take fake tensors for real ones.

    It would otherwise build masks that it leaves out in training.
    """
    with ExitStack() as stack:
        module = sys.modules.get("transformers.utils.import_utils")
        if hasattr(module, "is_fake_tensor"):
            stack.enter_context(patch.object(module, "is_fake_tensor", lambda tensor: False))
        yield


@contextmanager
def counted_random_state(recorder: Recorder) -> Iterator[None]:
    """Notes copies of the random state, which no operator makes: checkpointed layers keep them."""
    read = torch.get_rng_state

    def counted() -> torch.Tensor:
        state = read()
        recorder.watch([state])
        return state

    with patch.object(torch, "get_rng_state", counted):
        yield


class _Substitutes(TorchFunctionMode):
    """Replaces some of torch's functions where they are called."""

    def __init__(self, table: Mapping[Function, Function]) -> None:
        super().__init__()
        self._table = table

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return self._table.get(func, func)(*args, **(kwargs or {}))


@contextmanager
def as_on(
    target: Target, recorder: Recorder, *, is_fp16: bool = False
) -> Iterator[Attention | None]:
    """Lets operators allocate as on the target device.

    Args:
        target: The device.
        recorder: Of what they allocate.
        is_fp16: Whether bf16 stands for fp16.

    Yields:
        The attention that stands in for torch's; None on a CPU, which needs no substitutes.
    """
    if target.kind == "cpu":
        recorder.inside = inside_products(target.num_threads)
        with counted_random_state(recorder):
            yield None
        return
    attention = Attention(target, is_fp16=is_fp16)
    recorder.inside = inside_kernels(target)
    table: dict[Function, Function] = {
        function: _in_full_precision(function) for function in _IN_FULL_PRECISION
    }
    table[functional.scaled_dot_product_attention] = attention
    table[functional.dropout] = _dropout
    with ExitStack() as stack:
        for module in _optimizer_modules():
            stack.enter_context(
                patch.object(module, "_default_to_fused_or_foreach", _foreach_by_default)
            )
        stack.enter_context(
            patch.object(torch.nn.utils.clip_grad, "_has_foreach_support", lambda *_, **__: True)
        )
        substitutes = _Substitutes(table)
        stack.enter_context(
            patch.object(
                torch.autograd,
                "_engine_run_backward",
                _under(substitutes, vars(torch.autograd)["_engine_run_backward"]),
            )
        )
        stack.enter_context(substitutes)
        yield attention


def _under(substitutes: TorchFunctionMode, run: Function) -> Function:
    """`run` with the substitutes in force.

    They are out of force while one of the functions that they look at runs, and the backward pass
    is one, in which checkpointed layers run again.
    """

    def call(*args: object, **kwargs: object) -> object:
        with substitutes:
            return run(*args, **kwargs)

    return call


def _optimizer_modules() -> list[object]:
    """Modules of torch that choose how to step where nobody else does."""
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("torch.optim") and hasattr(module, "_default_to_fused_or_foreach")
    ]


def _foreach_by_default(
    params: list[torch.Tensor], differentiable: bool, use_fused: bool = False
) -> tuple[bool, bool]:
    """On a device, all tensors are stepped at once where nothing else was asked for."""
    if differentiable:
        return False, False
    return use_fused, not use_fused


def _dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """On a device, dropout keeps a mask of truths, a byte each; on a CPU, one of numbers."""
    if not training or not 0 < p < 1 or inplace:
        return functional.dropout(input, p, training, inplace)
    output: torch.Tensor = torch.native_dropout(input, p, True)[0]
    return output


def _in_full_precision(function: Function) -> Function:
    def call(*args: object, **kwargs: object) -> object:
        if not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        return function(
            *(_up(argument) for argument in args),
            **{name: _up(argument) for name, argument in kwargs.items()},
        )

    return call


def _up(argument: object) -> object:
    is_half = isinstance(argument, torch.Tensor) and argument.dtype in (
        torch.bfloat16,
        torch.float16,
    )
    return argument.float() if is_half else argument  # type: ignore[attr-defined]
