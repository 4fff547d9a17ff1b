"""Runs a training script unchanged and watches it from outside (child process only).

Whatever trains through Accelerate, the Trainer included, passes three points: the model is
prepared, losses go backward, the prepared optimizer steps. Those are watched; the script itself
is run as `python script.py` would run it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import math
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, GradientState
from pydantic import JsonValue
from torch.nn.parallel import DistributedDataParallel

from autotune.export.running.ranks import Caches
from autotune.export.running.seen import Seen

Inputs = Mapping[str, object]


@dataclass(kw_only=True)
class Step:
    """One optimizer step as it was seen."""

    rows: list[int] = field(default_factory=list)
    """Rows of each of its micro-batches."""
    losses: list[torch.Tensor] = field(default_factory=list)
    """Share of each micro-batch in the step's loss, as it went backward."""
    end_s: float = 0.0
    """When the optimizer had stepped, on the performance counter."""
    exchanges: bool = False
    """Whether a backward pass of it exchanged the gradients between ranks."""
    num_recomputed: int = 0
    """Module calls during the backward passes: what checkpointing recomputes."""

    @property
    def loss(self) -> float:
        """Loss of the step on this rank."""
        return float(sum(float(loss) for loss in self.losses))


class Observed:
    """What was seen of one script so far."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        """Finished optimizer steps."""
        self.begin_s: float | None = None
        """When the first forward pass began."""
        self.model: torch.nn.Module | None = None
        self.world_size = 1
        """Ranks that train together, as the script's Accelerator counts them."""
        self.recomputed: set[torch.nn.Module] = set()
        """Modules that were called during a backward pass."""
        self._current = Step()
        self._is_in_backward = False
        self._exchange: DistributedDataParallel | None = None
        """The wrapper that exchanges gradients."""

    def step_times_s(self) -> list[float]:
        """From the end of one optimizer step to the end of the next, data loading included.

        The first is counted from its first forward pass, so without loading its first batch.
        """
        times = []
        before_s = self.begin_s
        for step in self.steps:
            assert before_s is not None
            times.append(step.end_s - before_s)
            before_s = step.end_s
        return times


@contextlib.contextmanager
def watching(
    *, recomputation: bool = False, on_batch: Callable[[Inputs], None] = lambda inputs: None
) -> Iterator[Observed]:
    """Watches whatever trains inside the block; everything is as before after it.

    Args:
        recomputation: Also watch which modules run during the backward passes, which costs time
            in every module call.
        on_batch: Called with the keyword arguments of every training forward pass.
    """
    observed = Observed()
    prepare_model, backward = Accelerator.prepare_model, Accelerator.backward
    optimizer_step = AcceleratedOptimizer.step

    def before_forward(
        model: torch.nn.Module, args: tuple[object, ...], inputs: dict[str, object]
    ) -> None:
        if not (model.training and torch.is_grad_enabled()) or observed._is_in_backward:
            return
        if observed.begin_s is None:
            _synchronise()
            observed.begin_s = time.perf_counter()
        observed._current.rows.append(_num_rows(inputs))
        on_batch(inputs)

    @functools.wraps(prepare_model)
    def watched_prepare_model(
        self: Accelerator, model: torch.nn.Module, *args: object, **kwargs: object
    ) -> object:
        observed.model = model
        observed.world_size = self.num_processes
        handles.append(model.register_forward_pre_hook(before_forward, with_kwargs=True))
        prepared = prepare_model(self, model, *args, **kwargs)
        # A compiled model keeps the wrapper inside.
        wrapper = getattr(prepared, "_orig_mod", prepared)
        if isinstance(wrapper, DistributedDataParallel):
            observed._exchange = wrapper
        return prepared

    @functools.wraps(backward)
    def watched_backward(self: Accelerator, loss: torch.Tensor, **kwargs: object) -> None:
        observed._current.losses.append(loss.detach() / self.gradient_accumulation_steps)
        if observed._exchange is not None and observed._exchange.require_backward_grad_sync:
            observed._current.exchanges = True
        observed._is_in_backward = True
        try:
            backward(self, loss, **kwargs)
        finally:
            observed._is_in_backward = False

    @functools.wraps(optimizer_step)
    def watched_step(self: AcceleratedOptimizer, closure: object = None) -> None:
        optimizer_step(self, closure)
        if self.gradient_state.sync_gradients:
            _synchronise()
            observed._current.end_s = time.perf_counter()
            observed.steps.append(observed._current)
            observed._current = Step()

    def before_any_forward(module: torch.nn.Module, args: object) -> None:
        if observed._is_in_backward:
            observed._current.num_recomputed += 1
            observed.recomputed.add(module)

    handles: list[torch.utils.hooks.RemovableHandle] = []
    if recomputation:
        handles.append(torch.nn.modules.module.register_module_forward_pre_hook(before_any_forward))
    Accelerator.prepare_model = watched_prepare_model
    Accelerator.backward = watched_backward
    AcceleratedOptimizer.step = watched_step
    try:
        yield observed
    finally:
        Accelerator.prepare_model = prepare_model
        Accelerator.backward = backward
        AcceleratedOptimizer.step = optimizer_step
        for handle in handles:
            handle.remove()


def seen(observed: Observed) -> Seen:
    """The account of a script that has ended."""
    model = observed.model
    layers = _layers(model) if model is not None else []
    # A layer recomputes its forward, which may pass its own hooks by: its parts tell.
    recomputed = [any(part in observed.recomputed for part in one.modules()) for one in layers]
    parameters = list(model.parameters()) if model is not None else []
    return Seen(
        world_size=observed.world_size,
        step_rows=tuple(tuple(step.rows) for step in observed.steps),
        losses=tuple(step.loss for step in observed.steps),
        step_times_s=tuple(observed.step_times_s()),
        exchanges=tuple(step.exchanges for step in observed.steps),
        has_recomputed=bool(observed.recomputed),
        recomputed_layers=tuple(recomputed),
        parameter_sum=math.fsum(float(p.detach().double().abs().sum()) for p in parameters),
    )


def _layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Layers that can be checkpointed, where the installed transformers marks them by a class."""
    try:
        from transformers.modeling_layers import GradientCheckpointingLayer
    except ImportError:
        return []
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def run_script(script: Path, flags: Sequence[str]) -> None:
    """Runs a script in this process as the main program, and clears away what it leaves.

    Raises:
        RuntimeError: The script ended itself with an exit code other than 0.
        Exception: Whatever the script raises.
    """
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *flags]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise RuntimeError(f"the script ended itself: {end.code}") from end
    finally:
        sys.argv, sys.path[:] = argv, path
        # Accelerate keeps its settings in the process; the next script brings its own.
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _num_rows(inputs: Inputs) -> int:
    for value in (inputs.get("input_ids"), *inputs.values()):
        if isinstance(value, torch.Tensor) and value.ndim > 0:
            return int(value.shape[0])
    return 0


def _synchronise() -> None:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None and accelerator.is_available():
        accelerator.synchronize()


@contextlib.contextmanager
def hooked(name: str | None) -> Iterator[dict[str, JsonValue]]:
    """Enters a context manager by its name, `module:function`, and yields what it finds.

    Without a name, or where it yields no dictionary, nothing is found.
    """
    if name is None:
        yield {}
        return
    module, _, function = name.partition(":")
    made: AbstractContextManager[object] = getattr(importlib.import_module(module), function)()
    with made as found:
        yield found if isinstance(found, dict) else {}


def keep_caches(caches: Caches) -> None:
    """Lets `datasets` store nothing beside the user's data."""
    import datasets

    if not caches.is_hub:
        datasets.config.HF_DATASETS_CACHE = caches.scratch / "datasets"
    datasets.disable_caching()
