"""What the real CPU allocator held at its most while something ran, by torch's own profiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
    results = profiler.profiler.kineto_results
    waiting = list(results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == _EventType.Allocation:
            found.num_events += 1
            found.num_bytes = max(found.num_bytes, event.extra_fields.total_allocated)


def peak_in_fork(run: Callable[[], None]) -> int:
    """The peak of the CPU allocator while `run` runs in a process of its own.

    Nothing that ran before may have computed on several threads, which a fork would not inherit.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with allocator_peak() as peak:
                run()
            os.write(writing, str(peak.num_bytes).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return int(answer)
