"""What the collectives of a group keep of a device, outside the allocator of torch."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from probes.devices import torch_devices
from probes.link import BUFFERS
from probes.machine import Reading

if TYPE_CHECKING:
    from torch import device


def left_bytes(torch: ModuleType, where: device) -> int | None:
    """What the device has left, its own allocator's part counted in; None on a CPU."""
    if where.type == "cpu":
        return None
    # The context is made here, so that it is not taken for a part of the exchange.
    torch.zeros(1, device=where)
    torch.accelerator.synchronize()
    told = torch_devices.memory(torch, where.type, where.index)
    if told is None:
        return None
    return told[0] + int(getattr(torch, where.type).memory_reserved(where.index))


def buffers_reading(before_bytes: int | None, after_bytes: int | None) -> Reading | None:
    """What the collectives of a group keep of a device outside torch's allocator.

    Args:
        before_bytes: What was left before the group's first collective.
        after_bytes: And after its last one.

    Returns:
        The reading; None where nothing could be read.
    """
    if before_bytes is None or after_bytes is None:
        return None
    taken = float(max(0, before_bytes - after_bytes))
    return Reading(
        name=BUFFERS,
        unit="bytes",
        value=taken,
        samples=(taken,),
        note="device memory that rank 0 lost from before the first collective to after the last",
    )
