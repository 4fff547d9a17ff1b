"""What a meter asks of the device it measures on: wait, peak memory, the process's own level."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import psutil
import torch


@dataclass(frozen=True, slots=True)
class AcceleratorPeak:
    """Peak of the caching allocator since the last reset, and what lies outside of it."""

    allocated_bytes: int
    reserved_bytes: int
    outside_bytes: int


def current_device() -> torch.device:
    """The accelerator that training would use, or the CPU."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None and accelerator.is_available():
        found: torch.device = accelerator.current_accelerator()
        return found
    return torch.device("cpu")


def synchronize(device: torch.device) -> None:
    """Waits until the device has done everything that was asked of it."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def reset_peak(device: torch.device) -> None:
    """Starts the allocator's peak over and gives cached memory back."""
    _memory_api(device).empty_cache()
    _memory_api(device).reset_peak_memory_stats()


def read_peak(device: torch.device, others_bytes: int) -> AcceleratorPeak:
    """Reads the allocator's peak.

    Args:
        device: An accelerator, not the CPU.
        others_bytes: Device memory that other processes held before this one came.
    """
    api = _memory_api(device)
    free_bytes, total_bytes = free_and_total_bytes(device)
    outside_bytes = total_bytes - free_bytes - api.memory_reserved() - others_bytes
    return AcceleratorPeak(
        allocated_bytes=api.max_memory_allocated(),
        reserved_bytes=api.max_memory_reserved(),
        outside_bytes=max(0, outside_bytes),
    )


def allocated_bytes(device: torch.device) -> int:
    """Bytes of live tensors on an accelerator; 0 on a CPU, whose allocator does not count."""
    return 0 if device.type == "cpu" else _memory_api(device).memory_allocated()


class _MemoryApi(Protocol):
    """What `torch.accelerator` and the modules of its backends have in common."""

    def empty_cache(self) -> None: ...
    def reset_peak_memory_stats(self) -> None: ...
    def memory_allocated(self) -> int: ...
    def memory_reserved(self) -> int: ...
    def max_memory_allocated(self) -> int: ...
    def max_memory_reserved(self) -> int: ...


def _memory_api(device: torch.device) -> _MemoryApi:
    """The module with the allocator's statistics: the general one where it has them."""
    general = hasattr(torch.accelerator, "max_memory_reserved")
    return cast("_MemoryApi", torch.accelerator if general else getattr(torch, device.type))


def free_and_total_bytes(device: torch.device) -> tuple[int, int]:
    """Free and total memory of an accelerator, all processes counted."""
    if hasattr(torch.accelerator, "get_memory_info"):
        free_bytes, total_bytes = torch.accelerator.get_memory_info()
    else:
        free_bytes, total_bytes = getattr(torch, device.type).mem_get_info()
    return int(free_bytes), int(total_bytes)


def resident_bytes() -> int:
    """Resident memory of this process now."""
    return int(psutil.Process().memory_info().rss)


def reset_high_water() -> None:
    """Sets this process's resident high-water mark to what is resident now, where Linux allows."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def high_water_bytes() -> int | None:
    """Resident high-water mark of this process since `reset_high_water`; None off Linux."""
    return _status_bytes("VmHWM")


def fence_data(additional_bytes: int) -> None:
    """Lets the allocator refuse what goes beyond `additional_bytes`, before the system runs dry.

    Only Linux counts private writable mappings against this limit; elsewhere nothing is done.
    """
    data_bytes = _status_bytes("VmData")
    if data_bytes is None or not sys.platform.startswith("linux"):
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = data_bytes + additional_bytes
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _status_bytes(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None
