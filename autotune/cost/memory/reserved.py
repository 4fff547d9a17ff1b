"""What a traced training run makes the caching allocator reserve, at any micro-batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from autotune.cost.memory import allocator
from autotune.cost.memory.allocator import Replayed
from autotune.cost.memory.allocator_settings import UNCHANGED, AllocatorSettings
from autotune.cost.memory.trace import Phase, StepTrace, replay

NUM_STEPS = 3
"""Optimizer steps of a replay: in the first one the optimizer makes its state between what the step
has left, the second is the first with that state, and from the third on nothing new is asked for.
"""
MOST_ACCUMULATION_STEPS = 2
"""Later micro-batches repeat the second one, but for waiting longer."""


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
        self._trace = trace
        self._accumulation_steps = accumulation_steps
        self._kept_bytes = tuple(kept_bytes)
        self._passing_bytes = passing_bytes
        self._requests: dict[bool, _Requests] = {}

    def num_events(self, micro_batch_size: int) -> int:
        """Requests of the whole run."""
        return len(self._requests_at(micro_batch_size).keys)

    def at(
        self,
        micro_batch_size: int,
        settings: AllocatorSettings = UNCHANGED,
        *,
        num_waiting: int | None = None,
        capacity_bytes: int | None = None,
        device_bytes: int | None = None,
    ) -> Replayed:
        """Replays the run.

        Args:
            micro_batch_size: Samples of a micro-batch.
            settings: Of the job's allocator.
            num_waiting: Micro-batches that a step begins with; None is as many as it has.
            capacity_bytes: What the device has for the allocator; None is no limit.
            device_bytes: The whole device, which `memory_fraction` is a part of.
        """
        requests = self._requests_at(micro_batch_size)
        waiting = [event.size.at(micro_batch_size) for event in self._trace.window]
        waiting *= self._accumulation_steps if num_waiting is None else num_waiting
        keys, num_bytes = requests.with_waiting(waiting, micro_batch_size)
        return allocator.replay(
            keys,
            num_bytes,
            settings,
            capacity_bytes=capacity_bytes,
            device_bytes=device_bytes,
        )

    def _requests_at(self, micro_batch_size: int) -> _Requests:
        # A single row may do something else than more rows do; beyond that, only sizes differ.
        is_single = micro_batch_size == 1
        if is_single not in self._requests:
            self._requests[is_single] = self._put_together(micro_batch_size)
        return self._requests[is_single]

    def _put_together(self, micro_batch_size: int) -> _Requests:
        found = _Requests()
        extra = -1
        before: Phase = "setup"
        for number, is_free, event in replay(
            replace(self._trace, window=()),
            micro_batch_size=micro_batch_size,
            accumulation_steps=min(self._accumulation_steps, MOST_ACCUMULATION_STEPS),
            num_steps=NUM_STEPS,
        ):
            if before == "setup" and event.phase != "setup":
                for num_bytes in self._kept_bytes:
                    found.add(extra, num_bytes)
                    extra -= 1
                found.begin_step()
            if before == "optimizer" and event.phase != "optimizer":
                self._pass(found, extra)
                found.begin_step()
            if is_free:
                found.add(number)
            else:
                found.add(number, event.size.constant_bytes, event.size.bytes_per_sample)
            before = event.phase
        self._pass(found, extra)
        return found

    def _pass(self, requests: _Requests, key: int) -> None:
        if self._passing_bytes:
            requests.add(key, self._passing_bytes)
            requests.add(key)


@dataclass(slots=True)
class _Requests:
    """Requests whose sizes are affine in the micro-batch size; no size is the end of a block."""

    keys: list[int] = field(default_factory=list)
    _constant: list[float] = field(default_factory=list)
    _per_sample: list[float] = field(default_factory=list)
    _steps: list[int] = field(default_factory=list)
    """Places where optimizer steps begin."""

    def begin_step(self) -> None:
        """What is added from here on belongs to the next optimizer step."""
        self._steps.append(len(self.keys))

    def add(self, key: int, constant_bytes: float = 0.0, bytes_per_sample: float = 0.0) -> None:
        self.keys.append(key)
        self._constant.append(constant_bytes)
        self._per_sample.append(bytes_per_sample)

    def num_bytes(self, micro_batch_size: int) -> list[int]:
        sizes = np.array(self._constant) + np.array(self._per_sample) * micro_batch_size
        whole: list[int] = np.maximum(np.ceil(sizes), 0).astype(np.int64).tolist()
        return whole

    def with_waiting(
        self, waiting: Sequence[int], micro_batch_size: int
    ) -> tuple[list[int], list[int]]:
        """Keys and bytes of all requests, with blocks that are there for as long as each step.

        Args:
            waiting: Bytes of those blocks.
            micro_batch_size: Samples of a micro-batch.
        """
        own = self.num_bytes(micro_batch_size)
        if not waiting:
            return self.keys, own
        # No other block has such a key.
        names = [min(self.keys) - 1 - number for number in range(len(waiting))]
        start = self._steps[0]
        keys, sizes = self.keys[:start], own[:start]
        for begin, end in pairwise((*self._steps, len(own))):
            keys += [*names, *self.keys[begin:end], *names]
            sizes += [*waiting, *own[begin:end], *(0 for _ in names)]
        return keys, sizes


def reserved_bytes(
    trace: StepTrace,
    micro_batch_size: int,
    *,
    accumulation_steps: int = 1,
    settings: AllocatorSettings = UNCHANGED,
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
