"""Which layer of a stack a module or a weight is in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from autotune.tracing.depth import layer_in
from autotune.tracing.places import without_wrappers

if TYPE_CHECKING:
    from autotune.tracing.depth import Fold


class Layers:
    """The layers of a model's stack.

    Args:
        model: As it is traced, its stack cut short.
        fold: How; None where all of it is traced, and nobody asks for layers.
    """

    def __init__(self, model: torch.nn.Module, fold: Fold | None) -> None:
        self.has_any = fold is not None
        self._pattern = None if fold is None else layer_in(fold.path)
        self._by_module: dict[str, int | None] = {}
        self._by_weight: Mapping[int, int | None] = {}
        if fold is not None:
            tensors = [*model.named_parameters(), *model.named_buffers()]
            self._by_weight = {
                id(tensor): self.of_path(without_wrappers(name)) for name, tensor in tensors
            }

    def of_path(self, path: str) -> int | None:
        """The layer that a path leads into; None for what is outside of all."""
        if path not in self._by_module:
            found = None if self._pattern is None else self._pattern.match(path)
            self._by_module[path] = None if found is None else int(found[2])
        return self._by_module[path]

    def of_module(self, path: str, otherwise: int) -> int:
        """The layer that a module is in."""
        if self._pattern is None:
            return otherwise
        layer = self.of_path(path)
        return otherwise if layer is None else layer

    def of_weight(self, tensor: torch.Tensor, otherwise: int) -> int:
        """The layer that a weight or buffer is in."""
        layer = self._by_weight.get(id(tensor))
        return otherwise if layer is None else layer
