"""What the probes found, as frozen data that goes to JSON and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from pydantic import TypeAdapter

from probes.link import Link as Link
from probes.reading import Finding as Finding
from probes.reading import Reading as Reading
from probes.reading import Unit as Unit

PRETENCE_RATIO = 0.5
"""A shorter dtype that reaches less than this part of float32's rate is emulated: where hardware
has it, it is at least as fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """Another process that holds memory of a device."""

    process: int
    used_bytes: int | None
    """None where the driver does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, as torch numbers it, or the CPU where there is none."""

    kind: str
    """torch's device type: cpu, cuda, xpu, mps, …"""
    index: int
    """Number that torch gives it."""
    name: str
    uuid: str | None = None
    total_bytes: int
    free_bytes: int
    """Free for a new process; on a CPU what the control groups and the kernel leave."""
    memory_from: str
    """Which interface the two numbers come from."""
    is_integrated: bool = False
    """It shares the host's memory."""
    mig: bool = False
    nvml_index: int | None = None
    driver: str | None = None
    processes: tuple[DeviceProcess, ...] = ()
    """Others than the probing process itself."""
    utilization_percent: float | None = None
    power_w: float | None = None
    temperature_celsius: float | None = None
    allocatable_bytes: int | None = None
    """What an allocation that was really made and touched reached: at least this much can be had,
    since a try may end at its own bound. None if it was not tried."""
    allocation_refused: bool = False
    """The try ended because memory was refused: more than `allocatable_bytes` cannot be had."""

    @property
    def usable_bytes(self) -> int:
        """The free bytes, or fewer where a real allocation of them was refused."""
        if self.allocation_refused and self.allocatable_bytes is not None:
            return min(self.free_bytes, self.allocatable_bytes)
        return self.free_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine around the devices."""

    name: str
    processor: str
    num_cores: float
    """Cores this process may use, control-group quota counted; may be a fraction."""
    total_bytes: int
    """Memory the kernel will let this process reach: the smallest limit of all control groups."""
    available_bytes: int
    limit_from: str
    """What sets the total: the host, or the control group by its path."""
    platform: str
    num_threads: int
    """Threads that torch computes with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything the probes found."""

    host: Host
    devices: tuple[Device, ...]
    """Never empty: the CPU is a device where there is no other."""
    readings: tuple[Reading, ...] = ()
    links: tuple[Link, ...] = ()
    findings: tuple[Finding, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    probed_unix_s: float = 0.0
    """When the speeds were measured."""
    from_store: bool = False
    """The speeds were kept from an earlier survey of the unchanged machine; the rest is of now."""
    digest: str = ""
    """Changes whenever the hardware, its driver or the measuring libraries change."""
    likeness: str = ""
    """The same for machines whose measurements can be compared: it leaves out what tells two
    devices of the same make apart, but not which makes are visible."""

    @property
    def device(self) -> Device:
        """The device that one rank trains on: the one with the least memory, since it decides."""
        return min(self.devices, key=lambda device: device.usable_bytes)

    def reading(self, name: str) -> Reading | None:
        """The reading called `name`, if it was taken."""
        return next((r for r in self.readings if r.name == name), None)

    def only_pretends(self, dtype: str) -> bool:
        """Whether the device computes this dtype by detours, far slower than float32.

        Args:
            dtype: torch's name, for example `bfloat16`. False where it was not measured.
        """
        reading = self.reading(f"matmul {dtype}")
        full = self.reading("matmul float32")
        if reading is None or full is None:
            return False
        return reading.value < PRETENCE_RATIO * full.value


@cache
def machine_adapter() -> TypeAdapter[Machine]:
    """The codec between machines and JSON."""
    return TypeAdapter(Machine)
