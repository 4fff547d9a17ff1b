"""What a traced training run makes the caching allocator reserve, at any micro-batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.cost.memory import allocator
from autotune.cost.memory.allocator import Replayed
from autotune.cost.memory.allocator_settings import AllocatorSettings
from autotune.cost.memory.trace import Phase, StepTrace, replay

NUM_STEPS = 3
"""Optimizer steps of a replay: in the first one the optimizer makes its state between what the step
has left, the second is the first with that state, and from the third on nothing new is asked for.
"""
MOST_ACCUMULATION_STEPS = 2
"""Later micro-batches repeat the second one where each has its own memory."""


class Run:
    """A training run of a few steps as requests to an allocator, for any micro-batch size.

    Args:
        trace: The step.
        accumulation_steps: Micro-batches of an optimizer step.
        kept_bytes: What is allocated once after the weights and never given back: workspaces,
            gradient buckets.
        passing_bytes: What is allocated and given back after every optimizer step, such as the
            buffer that parameters are averaged in.
    """

    def __init__(
        self,
        trace: StepTrace,
        *,
        accumulation_steps: int = 1,
        kept_bytes: Sequence[int] = (),
        passing_bytes: int = 0,
    ) -> None:
        if not trace.window:
            accumulation_steps = min(accumulation_steps, MOST_ACCUMULATION_STEPS)
        keys: list[int] = []
        constant: list[float] = []
        per_sample: list[float] = []

        def add(key: int, constant_bytes: float, bytes_per_sample: float = 0.0) -> None:
            keys.append(key)
            constant.append(constant_bytes)
            per_sample.append(bytes_per_sample)

        extra = -1
        before: Phase = "setup"
        for event in replay(trace, accumulation_steps=accumulation_steps, num_steps=NUM_STEPS):
            if before == "setup" and event.phase != "setup":
                for num_bytes in kept_bytes:
                    add(extra, num_bytes)
                    extra -= 1
            if before == "optimizer" and event.phase != "optimizer" and passing_bytes:
                add(extra, passing_bytes)
                add(extra, 0)
            if event.is_free:
                add(event.storage, 0)
            else:
                add(event.storage, event.size.constant_bytes, event.size.bytes_per_sample)
            before = event.phase
        if passing_bytes:
            add(extra, passing_bytes)
            add(extra, 0)
        self._keys = keys
        self._constant = np.array(constant)
        self._per_sample = np.array(per_sample)

    @property
    def num_events(self) -> int:
        """Requests of the whole run."""
        return len(self._keys)

    def at(
        self,
        micro_batch_size: int,
        settings: AllocatorSettings = AllocatorSettings(),
        *,
        capacity_bytes: int | None = None,
        device_bytes: int | None = None,
    ) -> Replayed:
        """Replays the run.

        Args:
            micro_batch_size: Samples of a micro-batch.
            settings: Of the job's allocator.
            capacity_bytes: What the device has for the allocator; None is no limit.
            device_bytes: The whole device, which `memory_fraction` is a part of.
        """
        sizes = np.ceil(self._constant + self._per_sample * micro_batch_size)
        return allocator.replay(
            self._keys,
            np.maximum(sizes, 0).astype(np.int64).tolist(),
            settings,
            capacity_bytes=capacity_bytes,
            device_bytes=device_bytes,
        )


def reserved_bytes(
    trace: StepTrace,
    micro_batch_size: int,
    *,
    accumulation_steps: int = 1,
    settings: AllocatorSettings = AllocatorSettings(),
    kept_bytes: Sequence[int] = (),
    passing_bytes: int = 0,
) -> int:
    """Most that a run of this step reserves, without any limit of the device.

    Args:
        trace: The step.
        micro_batch_size: Samples of a micro-batch.
        accumulation_steps: Micro-batches of an optimizer step.
        settings: Of the job's allocator.
        kept_bytes: What is allocated once after the weights and never given back.
        passing_bytes: What is allocated and given back after every optimizer step.
    """
    run = Run(
        trace,
        accumulation_steps=accumulation_steps,
        kept_bytes=kept_bytes,
        passing_bytes=passing_bytes,
    )
    return run.at(micro_batch_size, settings).reserved_bytes


def gradient_bytes(trace: StepTrace) -> int:
    """Bytes of all gradients: what stays of the first backward pass."""
    alive: dict[int, float] = {}
    for event in trace.first_micro_step:
        if event.is_free:
            alive.pop(event.storage, None)
        elif event.kind == "gradients":
            alive[event.storage] = event.size.constant_bytes
    return math.ceil(sum(alive.values()))
