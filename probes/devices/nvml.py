"""NVIDIA's management library through `pynvml` of nvidia-ml-py.

Every query may be unsupported, so each goes through one helper that answers with the value or a
`Fault` of one table. A missing driver is a fault too, never an exception.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from probes.machine import DeviceProcess
from probes.wording import first_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why NVML did not answer, and what to do about it."""

    code: int
    cause: str
    """A clause, to be put after a colon."""
    remedy: str | None = None


_LIBRARY_NOT_FOUND: Final = 12
_FUNCTION_NOT_FOUND: Final = 13
_LOST: Final = (15, 16)
_UNKNOWN: Final = 999
_WITHOUT_DEVICE = "Until then train on the CPU or stop here, as you choose."

FAULTS: Final = {
    fault.code: fault
    for fault in (
        Fault(code=1, cause="NVML was not initialised"),
        Fault(code=2, cause="the device is not known"),
        Fault(code=3, cause="the device does not offer it"),
        Fault(
            code=4,
            cause="this user may not ask for it",
            remedy="Ask the machine's administrator for access to the device.",
        ),
        Fault(code=6, cause="the device was not found"),
        Fault(
            code=9,
            cause="the NVIDIA driver is not loaded",
            remedy=f"Load it (`modprobe nvidia`) or reboot. {_WITHOUT_DEVICE}",
        ),
        Fault(code=10, cause="the driver did not answer in time", remedy="Try again, or reboot."),
        Fault(
            code=_LIBRARY_NOT_FOUND,
            cause="no NVIDIA driver library is installed",
            remedy="Install the NVIDIA driver if the machine has an NVIDIA device.",
        ),
        Fault(
            code=_FUNCTION_NOT_FOUND,
            cause="the installed driver or nvidia-ml-py is too old to tell",
            remedy="Update the NVIDIA driver and nvidia-ml-py.",
        ),
        Fault(
            code=15,
            cause="it is lost: it no longer answers on its bus",
            remedy="Look for Xid in the kernel's log, then reset the device or reboot.",
        ),
        Fault(code=16, cause="it is lost until it is reset", remedy="Reset the device or reboot."),
        Fault(
            code=17,
            cause="the operating system blocks the driver",
            remedy="Give the container access to the device.",
        ),
        Fault(
            code=18,
            cause="driver and library versions differ",
            remedy=f"Reboot, or reload the driver's kernel modules. {_WITHOUT_DEVICE}",
        ),
        Fault(code=20, cause="the driver has no memory left", remedy="Try again, or reboot."),
        Fault(
            code=_UNKNOWN,
            cause="the driver reports an unknown error",
            remedy="Run `nvidia-smi` to see whether the driver works, or reboot.",
        ),
    )
}
"""Every fault that NVML may answer with, by its code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlDevice:
    """One device, or one MIG instance of it, as NVML sees it; None where it does not say."""

    index: int
    """NVML's number; a MIG instance bears its parent's."""
    uuid: str | None = None
    name: str = "NVIDIA device"
    total_bytes: int | None = None
    free_bytes: int | None = None
    processes: tuple[DeviceProcess, ...] = ()
    utilization_percent: float | None = None
    power_w: float | None = None
    temperature_celsius: float | None = None
    is_instance: bool = False
    """A MIG instance."""
    is_divided: bool = False
    """MIG is on: only its instances compute, and its own figures are sums over them."""
    fault: Fault | None = None
    """Why the device cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlView:
    """Everything that NVML says of the machine."""

    driver: str | None = None
    devices: tuple[NvmlDevice, ...] = ()
    """In NVML's order, each divided device followed by its instances."""
    fault: Fault | None = None
    """Why nothing is known at all."""

    @property
    def is_library_missing(self) -> bool:
        """No driver is installed, which is the ordinary case without an NVIDIA device."""
        return self.fault is not None and self.fault.code == _LIBRARY_NOT_FOUND


def look(binding: ModuleType | None = None) -> NvmlView:
    """Asks NVML for everything. Makes no device context; never raises for what NVML answers.

    Args:
        binding: A module with the functions of `pynvml`; None imports the installed one.
    """
    if binding is None:
        try:
            import pynvml
        except ImportError:
            return NvmlView(fault=FAULTS[_FUNCTION_NOT_FOUND])
        binding = pynvml
    started = ask(binding, "nvmlInit")
    if isinstance(started, Fault):
        return NvmlView(fault=started)
    try:
        driver = known(ask(binding, "nvmlSystemGetDriverVersion"))
        count = ask(binding, "nvmlDeviceGetCount")
        if isinstance(count, Fault):
            return NvmlView(driver=_text(driver), fault=count)
        devices = tuple(device for index in range(count) for device in _devices(binding, index))
        return NvmlView(driver=_text(driver), devices=devices)
    finally:
        ask(binding, "nvmlShutdown")


def ask(binding: ModuleType, function: str, *arguments: object) -> Any:  # noqa: ANN401
    """The answer of an NVML function, or the Fault that it met.

    Args:
        binding: A module with the functions of `pynvml`.
        function: The name of one; it may be missing.
        arguments: What it is given.
    """
    call = getattr(binding, function, None)
    if call is None:
        return FAULTS[_FUNCTION_NOT_FOUND]
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001 - bindings also pass on what ctypes raises
        code = getattr(error, "value", None)
        if code is None:
            return Fault(
                code=_UNKNOWN, cause=f"pynvml raised {type(error).__name__}: {first_line(error)}"
            )
        return FAULTS.get(code, Fault(code=code, cause=f"NVML answers {first_line(error)}"))


def known(answer: Any) -> Any:  # noqa: ANN401
    """An answer of `ask`, or None in the place of a fault."""
    return None if isinstance(answer, Fault) else answer


def _text(value: str | bytes | None) -> str | None:
    """Old bindings answer with bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _devices(binding: ModuleType, index: int) -> Iterator[NvmlDevice]:
    handle = ask(binding, "nvmlDeviceGetHandleByIndex", index)
    if isinstance(handle, Fault):
        yield NvmlDevice(index=index, fault=handle)
        return
    mode = known(ask(binding, "nvmlDeviceGetMigMode", handle))
    is_divided = mode is not None and mode[0] == 1
    yield _device(binding, handle, index, is_divided=is_divided)
    if not is_divided:
        return
    # Instances are numbered with gaps.
    for number in range(known(ask(binding, "nvmlDeviceGetMaxMigDeviceCount", handle)) or 0):
        instance = ask(binding, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        if not isinstance(instance, Fault):
            yield _device(binding, instance, index, is_instance=True)


def _device(
    binding: ModuleType,
    handle: object,
    index: int,
    *,
    is_divided: bool = False,
    is_instance: bool = False,
) -> NvmlDevice:
    # The first version's free and total mean the same in every driver; "used" does not.
    memory = ask(binding, "nvmlDeviceGetMemoryInfo", handle)
    is_lost = isinstance(memory, Fault) and memory.code in _LOST
    total_bytes = None if isinstance(memory, Fault) else int(memory.total) or None
    milliwatts = known(ask(binding, "nvmlDeviceGetPowerUsage", handle))
    utilization = known(ask(binding, "nvmlDeviceGetUtilizationRates", handle))
    sensor = getattr(binding, "NVML_TEMPERATURE_GPU", 0)
    name = _text(known(ask(binding, "nvmlDeviceGetName", handle)))
    return NvmlDevice(
        index=index,
        uuid=_text(known(ask(binding, "nvmlDeviceGetUUID", handle))),
        name=name or "NVIDIA device",
        total_bytes=total_bytes,
        free_bytes=None if total_bytes is None else int(memory.free),
        processes=_other_processes(binding, handle),
        utilization_percent=None if utilization is None else float(utilization.gpu),
        power_w=None if milliwatts is None else milliwatts / 1000,
        temperature_celsius=known(ask(binding, "nvmlDeviceGetTemperature", handle, sensor)),
        is_divided=is_divided,
        is_instance=is_instance,
        fault=memory if is_lost else None,
    )


def _other_processes(binding: ModuleType, handle: object) -> tuple[DeviceProcess, ...]:
    used_bytes: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        for process in known(ask(binding, f"nvmlDeviceGet{kind}RunningProcesses", handle)) or ():
            if process.pid != os.getpid():
                counted = used_bytes.get(process.pid)
                used_bytes[process.pid] = (
                    counted
                    if process.usedGpuMemory is None
                    else max(counted or 0, int(process.usedGpuMemory))
                )
    return tuple(
        DeviceProcess(process=process, used_bytes=used) for process, used in used_bytes.items()
    )
