"""Scaled dot product attention as the target device would choose it, on fake tensors of a CPU.

The choice follows torch's dispatcher for CUDA (`aten/src/ATen/native/transformers/cuda/sdp_utils`):
flash attention where dtype, head size and mask allow it, then the memory-efficient kernel, then
plain arithmetic. What kernels allocate for themselves is noted as far as it grows with the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

import torch

from autotune.tracing.recorder import Inside, Scratch
from autotune.tracing.request import Target

Kernel: TypeAlias = Literal["flash", "efficient", "math"]

_HALF = (torch.float16, torch.bfloat16)
_FIRST_WITH_BF16 = (8, 0)
"""Devices before have no kernel for it but plain arithmetic."""
_MOST_FLASH_HEAD = 256
_FLASH_ALIGNMENT = 8
_MASK_ALIGNMENT = 16
_ROWS_OF_BLOCK = 128
"""Queries that the backward pass of flash attention works on at once."""
_TILE = 64
"""Numbers of a side of the tiles that the memory-efficient kernel adds up gradients in."""
_TILE_HEAD_BYTES = 16
_FIRST_WITH_SPLIT_KEYS = (7, 0)
"""Devices before add up fp32 where it is in the end."""


def kernel_for(
    target: Target,
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    has_mask: bool,
    dtype: torch.dtype,
) -> Kernel:
    """The kernel that a CUDA device of this capability chooses.

    Args:
        target: The device.
        query: As the kernel gets it, of its shape at least.
        key: Likewise.
        value: Likewise.
        has_mask: Whether a mask comes with them.
        dtype: What the three are computed in on the device.
    """
    capability = target.capability or _FIRST_WITH_BF16
    heads_agree = query.shape[-3] == key.shape[-3] == value.shape[-3]
    if (
        capability >= (8, 0)
        and dtype in _HALF
        and not has_mask
        and query.shape[-1] == value.shape[-1] <= _MOST_FLASH_HEAD
    ):
        return "flash"
    alignment = 8 if dtype in _HALF else 4
    is_computed = dtype is not torch.bfloat16 or capability >= _FIRST_WITH_BF16
    if is_computed and heads_agree and all(t.shape[-1] % alignment == 0 for t in (query, value)):
        return "efficient"
    return "math"


class Attention:
    """Stands in for `torch.nn.functional.scaled_dot_product_attention`.

    Args:
        target: The device.
        is_fp16: Whether bf16 stands for fp16 here.
    """

    def __init__(self, target: Target, *, is_fp16: bool = False) -> None:
        self.used: set[Kernel] = set()
        self._target = target
        self._is_fp16 = is_fp16

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """The output of the chosen kernel."""
        query, key, value = (_cast(t) for t in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = _cast(attn_mask)
        is_fp16 = self._is_fp16 and query.dtype is torch.bfloat16
        kernel = kernel_for(
            self._target,
            query=query,
            key=key,
            value=value,
            has_mask=attn_mask is not None,
            dtype=torch.float16 if is_fp16 else query.dtype,
        )
        self.used.add(kernel)
        if kernel == "flash":
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if kernel == "efficient":
            return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        output: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )[0]
        return output


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    size = query.shape[-1]
    scale = scale if scale is not None else size**-0.5
    missing = -size % _FLASH_ALIGNMENT
    if missing:
        query, key, value = (torch.nn.functional.pad(t, (0, missing)) for t in (query, key, value))
    output: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return output[..., :size] if missing else output


def _inside_flash_backward(arguments: Sequence[object]) -> Scratch:
    """Row sums and the fp32 gradient of the queries, and keys and values of shared heads.

    From `mha_bwd` of FlashAttention-2 as torch ships it.
    """
    query, key = arguments[1], arguments[2]
    assert isinstance(query, torch.Tensor)
    assert isinstance(key, torch.Tensor)
    batch, heads, rows, size = query.shape
    rows = -(-rows // _ROWS_OF_BLOCK) * _ROWS_OF_BLOCK
    step = 32 if size <= 128 else 64
    padded = -(-size // step) * step
    num_bytes = 4 * batch * heads * rows * (1 + padded)
    if key.shape[1] != heads:
        num_bytes += 2 * batch * heads * key.shape[2] * size * key.element_size()
    return Scratch(num_bytes)


def _inside_efficient_backward(target: Target, arguments: Sequence[object]) -> Scratch:
    """Row sums, and the gradient of the queries in fp32, which parts of the keys add to in turn.

    From `workspace_size` in torch's `mem_eff_attention/kernel_backward.h`, which the installed one
    holds; with heads of more than 128 numbers, those of keys and values wait there too.
    """
    query, key, value = arguments[1:4]
    assert isinstance(query, torch.Tensor)
    assert isinstance(key, torch.Tensor)
    assert isinstance(value, torch.Tensor)
    batch, heads, rows, size = query.shape
    is_half = query.dtype in _HALF
    block = _TILE if size <= _TILE else 2 * _TILE
    num_bytes = 4 * rows
    if is_half or (target.capability or _FIRST_WITH_BF16) >= _FIRST_WITH_SPLIT_KEYS:
        tiles = -(-rows // block) * -(-size // _TILE)
        num_bytes += tiles * (_TILE_HEAD_BYTES + 4 * block * _TILE)
    if is_half and size > 2 * _TILE:
        num_bytes += sum(4 * _TILE * block * -(-t.shape[-1] // block) for t in (key, value))
    return Scratch(batch * heads * num_bytes)


def inside_kernels(target: Target) -> Mapping[object, Inside]:
    """What kernels allocate for themselves, by their operators."""
    aten = torch.ops.aten
    return {
        aten._scaled_dot_product_flash_attention_backward.default: _inside_flash_backward,
        aten._scaled_dot_product_efficient_attention_backward.default: partial(
            _inside_efficient_backward, target
        ),
    }


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    needs_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    bias = None if attn_mask is None else _bias(attn_mask, query, key)
    output: torch.Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, needs_gradient, dropout_p, is_causal, scale=scale
    )[0]
    return output


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The mask as a number that is added, in its own shape, padded as the kernel asks for.

    Only a view of it has the shape of all heads: nothing is kept for each of them.
    """
    if mask.dtype is torch.bool:
        zeros = torch.zeros_like(mask, dtype=query.dtype)
        mask = zeros.masked_fill_(~mask, float("-inf"))
    length = mask.shape[-1]
    missing = -length % _MASK_ALIGNMENT
    if missing:
        mask = torch.nn.functional.pad(mask, (0, missing))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[-2], key.shape[-2])


def _cast(tensor: torch.Tensor) -> torch.Tensor:
    """As autocast would hand it over, which does not know this operator on fake tensors."""
    if tensor.is_floating_point() and torch.is_autocast_enabled("cpu"):
        return tensor.to(torch.get_autocast_dtype("cpu"))
    return tensor
