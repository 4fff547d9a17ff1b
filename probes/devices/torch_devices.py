"""torch's view of the devices: the only numbers that training code can use them by.

`look` is the border: whatever of torch may be missing or raise is met here, and everything above
works on the plain `TorchView`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from probes.machine import Finding
from probes.wording import first_line


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevice:
    """One accelerator as torch numbers it; None where torch does not say."""

    kind: str
    index: int
    name: str
    uuid: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    memory_from: str = ""
    """The function that told the memory."""
    is_integrated: bool = False
    """It shares the host's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchView:
    """What torch can use."""

    devices: tuple[TorchDevice, ...] = ()
    num_threads: int | None = None
    has_cuda: bool = True
    """The installed build could drive an NVIDIA device."""
    findings: tuple[Finding, ...] = ()


def look(torch: ModuleType) -> TorchView:
    """Asks torch for its accelerators. Makes a context on each one whose memory it reads.

    Args:
        torch: The module.
    """
    findings: list[Finding] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            devices = _devices(torch, findings)
        except RuntimeError as error:
            devices = ()
            findings.append(
                Finding(
                    cause=f"torch cannot use the accelerator: {first_line(error)}.",
                    remedy="Check that the driver fits the installed torch.",
                )
            )
    for warning in caught:
        # torch only warns when the driver is too old for it, and then goes on without a device.
        if "CUDA" in str(warning.message):
            cause = f"torch warns: {first_line(warning.message)}."
            findings.append(Finding(cause=cause, remedy="Install the torch build for your driver."))
    version = torch.version
    return TorchView(
        devices=devices,
        num_threads=torch.get_num_threads(),
        has_cuda=bool(version.cuda) or bool(getattr(version, "hip", None)),
        findings=tuple(findings),
    )


def memory(torch: ModuleType, kind: str, index: int) -> tuple[int, int, str] | None:
    """Free bytes, total bytes and the function that told them, or None where none does.

    Args:
        torch: The module.
        kind: torch's device type.
        index: torch's number of the device.
    """
    backend: Any = getattr(torch, kind, None)
    for module, function, name in (
        (backend, "mem_get_info", f"torch.{kind}.mem_get_info"),
        (torch.accelerator, "get_memory_info", "torch.accelerator.get_memory_info"),
    ):
        if not hasattr(module, function):
            continue
        try:
            free_bytes, total_bytes = getattr(module, function)(index)
        except (RuntimeError, NotImplementedError):
            continue
        if total_bytes > 0:
            return int(free_bytes), int(total_bytes), name
    if hasattr(backend, "recommended_max_memory"):
        total_bytes = int(backend.recommended_max_memory())
        used_bytes = int(backend.driver_allocated_memory())
        return max(0, total_bytes - used_bytes), total_bytes, f"torch.{kind}.recommended_max_memory"
    return None


def _devices(torch: ModuleType, findings: list[Finding]) -> tuple[TorchDevice, ...]:
    if not torch.accelerator.is_available():
        return ()
    kind = torch.accelerator.current_accelerator().type
    devices = []
    for index in range(torch.accelerator.device_count()):
        try:
            devices.append(_device(torch, kind, index))
        except RuntimeError as error:
            findings.append(
                Finding(
                    cause=f"torch cannot use device {kind}:{index}: {first_line(error)}.",
                    remedy="Look for the device in the driver's own tool, then reset it or reboot.",
                )
            )
    return tuple(devices)


def _device(torch: ModuleType, kind: str, index: int) -> TorchDevice:
    properties = _properties(torch, kind, index)
    told = memory(torch, kind, index)
    uuid = getattr(properties, "uuid", None)
    return TorchDevice(
        kind=kind,
        index=index,
        name=getattr(properties, "name", None) or kind.upper(),
        uuid=None if uuid is None else str(uuid),
        free_bytes=None if told is None else told[0],
        total_bytes=None if told is None else told[1],
        memory_from="" if told is None else told[2],
        is_integrated=kind == "mps" or bool(getattr(properties, "is_integrated", False)),
    )


def _properties(torch: ModuleType, kind: str, index: int) -> Any:  # noqa: ANN401
    backend: Any = getattr(torch, kind, None)
    if not hasattr(backend, "get_device_properties"):
        return None
    return backend.get_device_properties(index)
