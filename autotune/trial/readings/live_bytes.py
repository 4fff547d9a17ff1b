"""Counts the bytes of live tensors on a CPU, operation by operation.

A CPU has no allocator statistics. Every storage that an operator returns is counted once, while
anything still refers to it; on real tensors this agrees with the profiler's allocator total to
within a few hundred bytes. Storage that grows in place (`resize_`) is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autotune.units import format_bytes


class HostBudgetExceeded(torch.OutOfMemoryError):
    """Live tensors would pass the memory that the process may occupy.

    Args:
        message: What happened, in words.
        needed_bytes: A lower bound of what the process needs in all.
    """

    def __init__(self, message: str, needed_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


class LiveBytes(TorchDispatchMode):
    """A dispatch mode under which `current_bytes` and `peak_bytes` of live tensors are kept.

    Args:
        budget_bytes: Raise `HostBudgetExceeded` when live bytes pass this; None never does.
        level_bytes: What the process occupies besides, for the message.
    """

    def __init__(self, budget_bytes: int | None = None, level_bytes: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current_bytes = 0
        self.peak_bytes = 0
        self._budget_bytes = budget_bytes
        self._level_bytes = level_bytes
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Counts tensors that were made before the mode was entered."""
        for tensor in tensors:
            self._add(tensor)

    def reset_peak(self) -> None:
        """Starts the peak over at what is live now."""
        self.peak_bytes = self.current_bytes

    def _add(self, tensor: torch.Tensor) -> None:
        if tensor.layout is torch.sparse_coo:
            self._add(tensor._indices())
            self._add(tensor._values())
            return
        if tensor.layout is not torch.strided:
            return  # Opaque layouts have no storage that could be looked at.
        storage = tensor.untyped_storage()
        key = storage._cdata
        num_bytes = storage.nbytes()
        if num_bytes == 0 or key in self._storages:
            return
        self._storages[key] = weakref.ref(storage, partial(self._forget, key, num_bytes))
        self.current_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        if self._budget_bytes is not None and self.current_bytes > self._budget_bytes:
            needed_bytes = self.current_bytes + self._level_bytes
            limit_bytes = self._budget_bytes + self._level_bytes
            raise HostBudgetExceeded(
                f"The process would pass the {format_bytes(limit_bytes)} that may be filled by at "
                f"least {format_bytes(needed_bytes - limit_bytes)}.",
                needed_bytes,
            )

    def _forget(self, key: int, num_bytes: int, _: object) -> None:
        if self._storages.pop(key, None) is not None:
            self.current_bytes -= num_bytes

    def __torch_dispatch__(
        self,
        func: object,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Runs the operator and counts what it returned."""
        result = func(*args, **(kwargs or {}))  # type: ignore[operator]
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                self._add(leaf)
        return result
