"""Tells in which module an operator runs, forward and backward."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.modules import module as hooks

_WRAPPERS = re.compile(r"^((module|base_model\.model)(\.|$))+")


def without_wrappers(path: str) -> str:
    """The path of a module without what wrappers of its model put before it."""
    return _WRAPPERS.sub("", path)


class Places:
    """Follows the forward passes of a model's modules, and which of them a gradient belongs to.

    An operator of the backward pass belongs to the module whose forward pass made its node of the
    graph; nodes are told apart by their sequence numbers.

    Args:
        model: As it is trained; the outermost module is called "".
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._paths = {id(m): without_wrappers(name) for name, m in model.named_modules()}
        self._stack: list[str] = []
        self._by_sequence: dict[int, str] = {}

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follows all forward passes inside the block."""
        handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            # Recomputation is cut short by an exception once it has what it needs.
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: torch.nn.Module, inputs: object) -> None:
        around = self._stack[-1] if self._stack else ""
        self._stack.append(self._paths.get(id(module), around))

    def _leave(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        self._stack.pop()

    @property
    def is_backward(self) -> bool:
        """Whether autograd runs, recomputation included."""
        return torch._C._current_graph_task_id() != -1

    @property
    def is_forward_code(self) -> bool:
        """Whether a forward pass runs, be it one that is repeated for the backward pass."""
        return bool(self._stack) or not self.is_backward

    def note(self) -> str:
        """The present module; an operator of a forward pass is remembered for its gradient."""
        if self._stack:
            path = self._stack[-1]
        elif self.is_backward:
            node = torch._C._current_autograd_node()
            return "" if node is None else self._by_sequence.get(node._sequence_nr(), "")
        else:
            path = ""
        # The node of an operator is made right before the operator runs.
        self._by_sequence.setdefault(torch._C._autograd._get_sequence_nr() - 1, path)
        return path

    def forget(self) -> None:
        """Forgets the graph of a step that is over."""
        self._by_sequence.clear()
        self._stack.clear()
