"""Products of groups of matrices on fake tensors, as experts make them."""

from __future__ import annotations

import torch


def grouped_mm(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Products of groups of rows, one a matrix, as experts make them.

    torch's own answer on fake tensors knows one device's types only.
    """
    shape: tuple[int, ...]
    if left.ndim == right.ndim == 2:
        assert offs is not None
        shape = (offs.shape[0], left.shape[0], right.shape[1])
    elif left.ndim == 2:
        shape = (left.shape[0], right.shape[2])
    elif right.ndim == 2:
        shape = (left.shape[1], right.shape[1])
    else:
        shape = (left.shape[0], left.shape[1], right.shape[2])
    return left.new_empty(shape, dtype=out_dtype or left.dtype)
