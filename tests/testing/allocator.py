"""What the real CPU allocator held at its most while something ran, by torch's own profiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile


@dataclass
class AllocatorPeak:
    """Filled in when the block is left."""

    num_bytes: int = 0
    num_events: int = 0


@contextmanager
def allocator_peak() -> Iterator[AllocatorPeak]:
    """Counts every allocation of the block, those inside of kernels among them.

    What was allocated before is not seen, so that a model must be made inside the block.
    """
    found = AllocatorPeak()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield found
    results = profiler.profiler.kineto_results  # type: ignore[union-attr]
    waiting = list(results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == _EventType.Allocation:
            found.num_events += 1
            found.num_bytes = max(found.num_bytes, event.extra_fields.total_allocated)
