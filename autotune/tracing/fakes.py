"""Replaces the tensors of a loaded workload by fake ones, which have a size and no content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from autotune.tracing import shadows
from autotune.workload.loaded import Batch, LoadedWorkload


def make_fake(workload: LoadedWorkload, mode: FakeTensorMode, *, on_device: bool) -> LoadedWorkload:
    """The workload with fake weights, in place: the model and the optimizer are not usable after.

    Args:
        workload: As a child process has loaded it.
        mode: Of the fake tensors.
        on_device: Whether every tensor gets a storage of its own, as it would when it is moved to a
            device; on a CPU, storages stay shared as they are.
    """
    twins = _Twins(mode, own_storage=on_device)
    for module in workload.model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = twins.of_parameter(parameter)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = twins.of(buffer)
    optimizer = workload.optimizers[0]
    if isinstance(optimizer, torch.optim.Optimizer):
        _rebind(optimizer, twins)
    _stay_here(workload.model)
    return workload


class _Twins:
    """The fake twin of each tensor; the same tensor has the same twin."""

    def __init__(self, mode: FakeTensorMode, *, own_storage: bool) -> None:
        self._mode = mode
        self._own_storage = own_storage
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By identity; the original is kept, so that its identity stays its own."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        known = self._known.get(id(tensor))
        if known is None:
            known = self._known[id(tensor)] = (tensor, self._make(tensor))
        return known[1]

    def of_parameter(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        twin = self.of(parameter)
        assert isinstance(twin, torch.nn.Parameter)
        return twin

    def _make(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._own_storage and tensor.layout is torch.strided:
            with self._mode, torch.no_grad():
                twin = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
                )
        else:
            twin = self._mode.from_tensor(tensor.detach())
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(twin, requires_grad=tensor.requires_grad)
        return twin


def _rebind(optimizer: torch.optim.Optimizer, twins: _Twins) -> None:
    """Lets an optimizer of the user's own making step the fake weights."""
    for group in optimizer.param_groups:
        group["params"] = [twins.of(parameter) for parameter in group["params"]]
    state = {
        twins.of(parameter): {
            name: twins.of(value) if isinstance(value, torch.Tensor) else value
            for name, value in entries.items()
        }
        for parameter, entries in optimizer.state.items()
    }
    optimizer.state.clear()
    optimizer.state.update(state)


def _stay_here(model: torch.nn.Module) -> None:
    """Moving a model swaps its tensors, which fake ones do not allow; it is where it should be."""
    model.to = lambda *args, **kwargs: model  # type: ignore[method-assign]


def tensors_of(model: torch.nn.Module) -> Iterable[torch.Tensor]:
    """Parameters, then buffers."""
    yield from model.parameters()
    yield from model.buffers()


def fake_batch(batch: Mapping[str, object], mode: FakeTensorMode) -> Batch:
    """The fake twin of a collated batch, with the values of its whole numbers.

    Args:
        batch: Of real tensors.
        mode: Of the fake tensors.
    """
    twins: dict[str, torch.Tensor] = {}
    for name, value in batch.items():
        if isinstance(value, torch.Tensor):
            # Rows of the same batch share a storage; the twins of each batch have their own.
            twins[name] = shadows.with_value(mode, value.clone())
        else:
            twins[name] = value  # type: ignore[assignment]
    return twins


def with_arguments(workload: LoadedWorkload, **changes: object) -> LoadedWorkload:
    """The workload with other TrainingArguments fields; None leaves a field out."""
    values = {**workload.arguments, **changes}
    return replace(
        workload, arguments={name: value for name, value in values.items() if value is not None}
    )
