"""What products of bf16 matrices allocate for themselves on a CPU.

oneDNN's kernel for them (`brgemm_matmul`) works in buffers that torch allocates for it, and that
fake tensors do not show: blocks of both matrices in the kernel's own order, and of the product in
fp32, for each thread. Blocks have a largest size, so that the buffers stop to grow with the rows.
The rule is fitted to allocations measured over many shapes on a CPU with AVX-512 and bf16
instructions, on one and two threads; processors with other blocks may need some more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from autotune.tracing.recorder import Inside, Scratch

_FEWEST_PRODUCTS = 16**3
"""Smaller products, torch computes by itself."""
_MOST_ROWS = 256
"""Of the product that are computed at once."""
_FEWEST_ROWS = 64
_COLUMNS = 64
"""Of the product that are computed at once."""
_MOST_COLUMN_BLOCKS = 16
"""Whose sums wait in fp32 while the terms of a long sum are gone through in parts."""
_TERMS = 512
"""Of a sum that are gone through at once where the first matrix is transposed."""
_MOST_TERMS = 1024
"""Likewise, where it is not."""
_TERMS_TOGETHER = 32
_TERMS_BESIDE = 32
"""That rows of a copy are longer by, where their length is a power of two."""
_LISTS_BYTES = 1152
"""Where the blocks are, for the kernel."""
_HALF, _FULL = 2, 4
"""Bytes of a number in bf16 and in fp32."""


def inside_products(num_threads: int) -> Mapping[object, Inside]:
    """What kernels allocate for themselves, by their operators.

    Args:
        num_threads: That compute.
    """
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return {}
    aten = torch.ops.aten
    return {
        aten.mm.default: partial(_inside, num_threads, 0),
        aten.addmm.default: partial(_inside, num_threads, 1),
    }


def _inside(num_threads: int, place: int, arguments: Sequence[object]) -> Scratch | None:
    left, right = arguments[place : place + 2]
    assert isinstance(left, torch.Tensor)
    assert isinstance(right, torch.Tensor)
    if left.dtype is not torch.bfloat16 or right.dtype is not torch.bfloat16:
        return None
    (rows, terms), columns = left.shape, right.shape[1]
    if rows * terms * columns <= _FEWEST_PRODUCTS:
        return None
    if left.stride(0) == 1 and left.stride(1) >= rows > 1:
        found = _of_weights(rows, terms, columns)
    else:
        found = _of_samples(rows, terms)
    return Scratch(num_threads * found.num_bytes, num_threads * found.most_bytes)


def _of_samples(rows: int, terms: int) -> Scratch:
    """The product has a row for each of the batch: no more of them are in work than a block has."""
    terms = min(-(-terms // _TERMS_TOGETHER) * _TERMS_TOGETHER, _MOST_TERMS)
    always = _LISTS_BYTES + _HALF * _COLUMNS * terms
    a_row = _FULL * _COLUMNS
    return Scratch(always + a_row * rows, always + a_row * _MOST_ROWS)


def _of_weights(rows: int, terms: int, columns: int) -> Scratch:
    """Gradients of weights are sums over the rows of the batch, and those of inputs are copied.

    Sums of more terms than are gone through at once wait in fp32, which is taken to begin by and
    by: what is between is no less than what the kernel takes.
    """
    rows = _rows_at_once(rows)
    blocks = min(-(-columns // _COLUMNS), _MOST_COLUMN_BLOCKS)
    always = _LISTS_BYTES + _FULL * _COLUMNS * rows
    growing = (
        _HALF * rows * (_TERMS + _TERMS_BESIDE)
        + _HALF * _COLUMNS * _TERMS
        + _FULL * _COLUMNS * rows * (blocks - 1)
    )
    num_terms = terms + _TERMS_TOGETHER - 1
    return Scratch(always - (-growing * num_terms // _TERMS), always + growing)


def _rows_at_once(rows: int) -> int:
    """Blocks are as large as may be, and all the same where that is possible."""
    if rows <= _MOST_ROWS:
        return rows
    equal = (size for size in range(_MOST_ROWS, _FEWEST_ROWS - 1, -1) if rows % size == 0)
    return next(equal, _MOST_ROWS)
