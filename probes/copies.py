"""How fast memory moves: within the device, within the host, and between the two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

from probes.machine import Device, Reading
from probes.timing import time_call

_MIB = 2**20
_HOST_BUFFER_BYTES = 128 * _MIB
"""Several times the last cache of most processors."""
_DEVICE_BUFFER_BYTES = 1024 * _MIB
_LINK_BUFFER_BYTES = 64 * _MIB
_PART_OF_FREE = 16


def memory_bandwidth(torch: ModuleType, device: Device, *, time_limit_s: float = 0.5) -> Reading:
    """Bytes read and written in a second by a copy within the memory of a device.

    Args:
        torch: The module.
        device: The CPU or an accelerator.
        time_limit_s: Time for the samples.
    """
    wanted_bytes = _HOST_BUFFER_BYTES if device.kind == "cpu" else _DEVICE_BUFFER_BYTES
    num_bytes = _buffer_bytes(device, wanted_bytes)
    place = f"{device.kind}:{device.index}"
    source = torch.full((num_bytes,), 1, dtype=torch.uint8, device=place)
    target = torch.zeros_like(source)
    timing = time_call(
        lambda: target.copy_(source),
        synchronize=synchronizer(torch, device),
        time_limit_s=time_limit_s,
    )
    note = f"a copy of {num_bytes // _MIB} MiB on {place}, both directions counted"
    return timing.rate("memory bandwidth", "bytes_per_s", 2 * num_bytes, note)


def host_copies(
    torch: ModuleType, device: Device, *, time_limit_s: float = 0.25
) -> Iterator[Reading]:
    """Bytes a second between host and device, each way, from pinned and from pageable memory.

    Args:
        torch: The module.
        device: An accelerator; the CPU has no such copies.
        time_limit_s: Time for the samples of each.
    """
    if device.kind == "cpu":
        return
    num_bytes = _buffer_bytes(device, _LINK_BUFFER_BYTES)
    on_device = torch.zeros(num_bytes, dtype=torch.uint8, device=f"{device.kind}:{device.index}")
    for kind in ("pinned", "pageable"):
        on_host = torch.full((num_bytes,), 1, dtype=torch.uint8)
        if kind == "pinned":
            on_host = on_host.pin_memory()
        for way, target, source in (
            ("host to device", on_device, on_host),
            ("device to host", on_host, on_device),
        ):
            timing = time_call(
                partial(target.copy_, source, non_blocking=True),
                synchronize=synchronizer(torch, device),
                time_limit_s=time_limit_s,
            )
            note = f"{num_bytes // _MIB} MiB at a time"
            yield timing.rate(f"copy {way}, {kind}", "bytes_per_s", num_bytes, note)


def synchronizer(torch: ModuleType, device: Device) -> Callable[[], object] | None:
    """What waits for a device; None for the CPU, whose calls block.

    Args:
        torch: The module.
        device: The device that is timed.
    """
    if device.kind == "cpu":
        return None
    return lambda: torch.accelerator.synchronize(device.index)


def _buffer_bytes(device: Device, wanted_bytes: int) -> int:
    return max(_MIB, min(wanted_bytes, device.free_bytes // _PART_OF_FREE))
