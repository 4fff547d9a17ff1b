"""How much memory an allocation that is really made and touched can have.

What an interface calls free may be refused all the same: an overcommitted container, a share of a
device, a limit that nobody reports. So a short-lived child takes memory step by step and writes
to it, and never so much that somebody else would be refused memory for it.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace

from probes.child import run_module
from probes.climbing import End
from probes.machine import Device, Finding, Reading
from probes.wording import mib

READING = "allocation tried"
"""Name of the reading that says what was tried."""

_MIB = 2**20
_HOST_BOUND_BYTES = 256 * _MIB
_HOST_PART = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """How a try ended."""

    reached_bytes: int
    """Allocated and touched; on a device with the context that the process needed for it."""
    bound_bytes: int
    """What was to be tried."""
    end: End


def attempt(device: Device, *, time_limit_s: float) -> Attempt | None:
    """Tries an allocation on a device, in a child process that is gone afterwards.

    The CPU and devices that share its memory: a tenth of what is available, at most 256 MiB. Other
    devices: nearly all that is free, or as little as on the host while another process uses it,
    which would otherwise be refused memory itself.

    Args:
        device: Where to allocate.
        time_limit_s: The child is ended after this time.

    Returns:
        What was reached, or None where the child told nothing.
    """
    is_host = device.kind == "cpu" or device.is_integrated
    bound_bytes = device.free_bytes
    if is_host or device.processes:
        bound_bytes = int(min(_HOST_BOUND_BYTES, _HOST_PART * device.free_bytes))
    place = "host" if is_host else f"{device.kind}:{device.index}"
    arguments = [place, str(bound_bytes), str(device.free_bytes), str(0.8 * time_limit_s)]
    result = run_module("probes.climbing", arguments, time_limit_s=time_limit_s)
    told = [line for line in (_told(line) for line in result.lines) if line is not None]
    if not told:
        return None
    # A child that the kernel ended for memory was refused it, in the kernel's way.
    return replace(told[-1], end="refused") if result.was_killed else told[-1]


def with_attempt(device: Device, tried: Attempt) -> tuple[Device, Reading, list[Finding]]:
    """The device with what was tried, the reading of it, and what to say if it fell short.

    Args:
        device: Where it was tried.
        tried: How the try ended.
    """
    is_refused = tried.end == "refused"
    tried_device = replace(
        device, allocatable_bytes=tried.reached_bytes, allocation_refused=is_refused
    )
    what = {
        "bound": "the try ended at its bound, so more may be had",
        "stopped": "the try ended early to keep the machine safe, so more may be had",
        "refused": "more was refused",
    }[tried.end]
    reading = Reading(
        name=READING,
        unit="bytes",
        value=float(tried.reached_bytes),
        samples=(float(tried.reached_bytes),),
        note=(
            f"allocated and touched on {device.kind}:{device.index} in a child process, of "
            f"{mib(device.free_bytes)} said to be free: {what}"
        ),
    )
    if not is_refused:
        return tried_device, reading, []
    finding = Finding(
        cause=(
            f"{device.kind}:{device.index} says that {mib(device.free_bytes)} are free, but "
            f"an allocation of more than {mib(tried.reached_bytes)} was refused."
        ),
        remedy="Look for a limit on the process or the device; the smaller number is used.",
    )
    return tried_device, reading, [finding]


def _told(line: str) -> Attempt | None:
    with contextlib.suppress(ValueError, TypeError):
        return Attempt(**json.loads(line))
    return None
