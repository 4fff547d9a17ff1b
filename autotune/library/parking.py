"""Moves what a live job holds on a device to the host for the time of the trials, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextmanager
def parked(model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None) -> Iterator[int]:
    """Frees the device of a model, its gradients and its optimizer's state inside the block.

    The tensors stay the same objects with the same values; tensors that share memory share it
    again afterwards.

    Yields:
        How many bytes were moved; 0 where nothing is on a device.
    """
    tensors = list(_tensors(model, optimizer))
    before = [(tensor, tensor.data) for tensor in tensors if tensor.device.type != "cpu"]
    copies: dict[tuple[int, int], torch.UntypedStorage] = {}
    moved_bytes = 0
    places = []
    for tensor, data in before:
        storage = data.untyped_storage()
        key = (storage.data_ptr(), storage.nbytes())
        if key not in copies:
            copies[key] = storage.cpu()
            moved_bytes += storage.nbytes()
        places.append((tensor, data.device, copies[key], _layout(data)))
    del before
    for tensor, _, storage, layout in places:
        tensor.data = _view(storage, layout, tensor.dtype, "cpu")
    try:
        _empty_cache(moved_bytes)
        yield moved_bytes
    finally:
        back: dict[int, torch.UntypedStorage] = {}
        for tensor, device, storage, layout in places:
            if id(storage) not in back:
                back[id(storage)] = storage.to(device=device)
            tensor.data = _view(back[id(storage)], layout, tensor.dtype, device)


_Layout = tuple[tuple[int, ...], tuple[int, ...], int]
"""Size, strides and offset."""


def _layout(data: torch.Tensor) -> _Layout:
    return tuple(data.size()), data.stride(), int(data.storage_offset())


def _view(
    storage: torch.UntypedStorage, layout: _Layout, dtype: torch.dtype, device: object
) -> torch.Tensor:
    import torch

    size, stride, offset = layout
    empty = torch.empty(0, dtype=dtype, device=device)  # type: ignore[call-overload]
    view: torch.Tensor = empty.set_(storage, offset, size, stride)
    return view


def _tensors(
    model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None
) -> Iterator[torch.Tensor]:
    import torch

    seen: set[int] = set()

    def new(tensor: object) -> Iterator[torch.Tensor]:
        if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor

    for parameter in model.parameters() if model is not None else ():
        yield from new(parameter)
        yield from new(parameter.grad)
    for buffer in model.buffers() if model is not None else ():
        yield from new(buffer)
    for state in optimizer.state.values() if optimizer is not None else ():
        for value in state.values():
            yield from new(value)


def _empty_cache(moved_bytes: int) -> None:
    import torch

    if moved_bytes:
        # Earlier versions have it on the module of each backend alone.
        empty = getattr(torch.accelerator, "empty_cache", torch.cuda.empty_cache)
        empty()
