"""The child that tries an allocation: climbs step by step, and tells every step.

It is fenced: on the host it looks at what is left before each step, limits itself, and offers
itself to the kernel as the first to be ended. It starts in a blink, so it imports next to nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TextIO, TypeAlias

from probes.memory import read_memory

End: TypeAlias = Literal["bound", "refused", "stopped"]
"""It had the bytes it was to try; memory was refused; it stopped to keep the machine safe."""

_Tell: TypeAlias = Callable[[int, int, End], None]

_MIB = 2**20
_HOST_STEP_BYTES = 32 * _MIB
_SPARED_BYTES = 256 * _MIB
_SPARED_PART = 0.05
_DEVICE_SPARED_PART = 0.02
_DEVICE_STEPS = 16
_SMALLEST_STEP_BYTES = 32 * _MIB


def climb(
    take: Callable[[int], bool],
    *,
    bound_bytes: int,
    step_bytes: int,
    smallest_step_bytes: int,
    may_take: Callable[[int], bool],
    on_step: Callable[[int], None],
) -> tuple[int, End]:
    """Takes memory step by step up to a bound; a refused step is halved until it is small.

    Args:
        take: Allocates and touches that many bytes; False where it is refused.
        bound_bytes: Where to end.
        step_bytes: First step.
        smallest_step_bytes: A step refused at this size ends the climb.
        may_take: Whether the machine can spare that many bytes more.
        on_step: Is told the bytes reached after every step.

    Returns:
        The bytes reached and why the climb ended.
    """
    reached_bytes = 0
    while reached_bytes < bound_bytes:
        step = min(step_bytes, bound_bytes - reached_bytes)
        if not may_take(step):
            return reached_bytes, "stopped"
        if take(step):
            reached_bytes += step
            on_step(reached_bytes)
        elif step <= smallest_step_bytes:
            return reached_bytes, "refused"
        else:
            step_bytes = max(smallest_step_bytes, step // 2)
    return reached_bytes, "bound"


def main(arguments: list[str], out: TextIO) -> int:
    """The child: climbs, and tells every step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place")
    parser.add_argument("bound_bytes", type=int)
    parser.add_argument("free_bytes", type=int)
    parser.add_argument("time_limit_s", type=float)
    options = parser.parse_args(arguments)
    deadline_s = time.monotonic() + options.time_limit_s

    def tell(reached_bytes: int, bound_bytes: int, end: End) -> None:
        line = {"reached_bytes": reached_bytes, "bound_bytes": bound_bytes, "end": end}
        out.write(json.dumps(line) + "\n")
        out.flush()

    if options.place == "host":
        _climb_host(options.bound_bytes, deadline_s, tell)
    else:
        _climb_device(options.place, options.bound_bytes, options.free_bytes, deadline_s, tell)
    return 0


def _climb_host(bound_bytes: int, deadline_s: float, tell: _Tell) -> None:
    _fence(bound_bytes)
    spared_bytes = max(
        _SPARED_BYTES, int(_SPARED_PART * read_memory(process_limits={}).total_bytes)
    )
    blocks = []
    pattern = b"\xa5" * _MIB

    def take(num_bytes: int) -> bool:
        try:
            block = _private_memory(num_bytes)
        except (OSError, MemoryError):
            return False
        for start in range(0, num_bytes, _MIB):
            block.write(pattern[: num_bytes - start])
        blocks.append(block)
        return True

    def may_take(num_bytes: int) -> bool:
        is_spared = read_memory(process_limits={}).available_bytes >= num_bytes + spared_bytes
        return is_spared and time.monotonic() < deadline_s

    reached_bytes, end = climb(
        take,
        bound_bytes=bound_bytes,
        step_bytes=_HOST_STEP_BYTES,
        smallest_step_bytes=_MIB,
        may_take=may_take,
        on_step=lambda reached_bytes: tell(reached_bytes, bound_bytes, "stopped"),
    )
    tell(reached_bytes, bound_bytes, end)


def _climb_device(
    place: str, bound_bytes: int, free_bytes: int, deadline_s: float, tell: _Tell
) -> None:
    import torch

    from probes.devices import torch_devices

    kind, _, index = place.partition(":")
    blocks = [torch.zeros(1, device=place)]
    torch.accelerator.synchronize()
    told = torch_devices.memory(torch, kind, int(index))
    now_free_bytes = free_bytes if told is None else told[0]
    # What the context took belongs to what a process can have, as the limit counts it.
    context_bytes = max(0, free_bytes - now_free_bytes)
    spared_bytes = max(_SPARED_BYTES, int(_DEVICE_SPARED_PART * now_free_bytes))
    bound_bytes = max(0, min(bound_bytes - context_bytes, now_free_bytes - spared_bytes))

    def take(num_bytes: int) -> bool:
        try:
            blocks.append(torch.empty(num_bytes, dtype=torch.uint8, device=place).fill_(1))
            torch.accelerator.synchronize()
        except RuntimeError:  # torch.OutOfMemoryError where the backend has it
            return False
        return True

    reached_bytes, end = climb(
        take,
        bound_bytes=bound_bytes,
        step_bytes=max(_SMALLEST_STEP_BYTES, bound_bytes // _DEVICE_STEPS),
        smallest_step_bytes=_SMALLEST_STEP_BYTES,
        may_take=lambda _: time.monotonic() < deadline_s,
        on_step=lambda reached_bytes: tell(
            context_bytes + reached_bytes, context_bytes + bound_bytes, "stopped"
        ),
    )
    tell(context_bytes + reached_bytes, context_bytes + bound_bytes, end)


def _private_memory(num_bytes: int) -> mmap.mmap:
    # Shared anonymous memory, Python's default, escapes the limits that tensors meet.
    if sys.platform == "win32":
        return mmap.mmap(-1, num_bytes)
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _fence(bound_bytes: int) -> None:
    """Keeps the child from taking more than it was told, and makes it the first to be ended."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
        import resource

        data_bytes = next(
            int(line.split()[1]) * 1024
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("VmData")
        )
        fence_bytes = data_bytes + bound_bytes + 64 * _MIB
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft == resource.RLIM_INFINITY or soft > fence_bytes:
            resource.setrlimit(resource.RLIMIT_DATA, (fence_bytes, hard))
