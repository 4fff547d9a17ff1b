"""The devices a process can train on, joined from what torch, NVML and the host say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from probes.devices.nvml import NvmlDevice, NvmlView
from probes.devices.torch_devices import TorchDevice, TorchView
from probes.devices.visible import Selection, select
from probes.machine import Device, Finding
from probes.memory import HostMemory
from probes.wording import mib

FROM_NVML = "NVML"
FROM_HOST = "the host, whose memory the device shares"

_MIB = 2**20
_WORTH_SAYING_BYTES = 256 * _MIB
_WORTH_SAYING_PERCENT = 10.0
_SAME_SIZE_RATIO = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Devices, never none, and what is to be said of them."""

    devices: tuple[Device, ...]
    findings: tuple[Finding, ...]


def join(
    nvml: NvmlView,
    torch: TorchView,
    host: HostMemory,
    *,
    processor: str,
    environment: Mapping[str, str],
) -> Found:
    """Joins the views. torch decides which devices there are and how they are numbered.

    Free memory is NVML's where NVML knows the device, since torch's figure already lacks the
    context that asking for it made; torch's where it sees less of the device than NVML; the host's
    where the device shares it. Without a device the CPU is the device.

    Args:
        nvml: What NVML says.
        torch: What torch says.
        host: The host's memory.
        processor: Name of the CPU.
        environment: The variables that the training process will see.
    """
    selection = select(nvml, environment)
    findings = [*torch.findings, *selection.findings]
    devices = []
    for seen in torch.devices:
        known = _counterpart(seen, nvml, selection, num_seen=len(torch.devices))
        if known is not None and known.fault is not None:
            continue
        device = _device(seen, known, nvml, host)
        if device is None:
            findings.append(
                Finding(
                    cause=f"Nobody tells the memory of {seen.kind}:{seen.index} ({seen.name}).",
                    remedy="Update the driver and torch.",
                )
            )
        else:
            devices.append(device)
            findings += _neighbours(device)
    findings += [
        Finding(
            cause=f"Device {device.index} cannot be used: {device.fault.cause}.",
            remedy=device.fault.remedy,
        )
        for device in nvml.devices
        if device.fault is not None
    ]
    findings += _without_nvml(nvml, torch)
    if not devices:
        findings += _unused(torch, selection)
        return Found(devices=(cpu(host, processor),), findings=tuple(findings))
    return Found(devices=tuple(devices), findings=(*findings, *smallest_decides(devices)))


def cpu(host: HostMemory, processor: str) -> Device:
    """The CPU as the device to train on."""
    return Device(
        kind="cpu",
        index=0,
        name=processor,
        total_bytes=host.total_bytes,
        free_bytes=host.available_bytes,
        memory_from=host.limit_from,
    )


def assumed(nvml: NvmlView, environment: Mapping[str, str]) -> TorchView:
    """What torch would see if it could be asked: the usable devices that CUDA shows."""
    selection = select(nvml, environment)
    usable = [device for device in selection.devices if device.fault is None]
    return TorchView(
        devices=tuple(
            TorchDevice(kind="cuda", index=index, name=device.name, uuid=device.uuid)
            for index, device in enumerate(usable)
        )
    )


def smallest_decides(devices: Iterable[Device]) -> list[Finding]:
    """The remark that is due where devices differ in memory."""
    by_size = sorted(devices, key=lambda device: device.usable_bytes)
    smallest, largest = by_size[0], by_size[-1]
    if smallest.usable_bytes >= _SAME_SIZE_RATIO * largest.usable_bytes:
        return []
    return [
        Finding(
            cause=(
                f"The devices differ: device {smallest.index} ({smallest.name}) has "
                f"{mib(smallest.usable_bytes)} free, device {largest.index} ({largest.name}) has "
                f"{mib(largest.usable_bytes)}. Every rank runs the same micro-batch size, so the "
                "smallest decides."
            ),
            remedy="Leave it out with CUDA_VISIBLE_DEVICES if the others do better without it.",
            is_problem=False,
        )
    ]


def plain_uuid(uuid: str) -> str:
    """A UUID without the prefix that NVML writes and torch does not."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def _counterpart(
    seen: TorchDevice, nvml: NvmlView, selection: Selection, *, num_seen: int
) -> NvmlDevice | None:
    if seen.kind != "cuda":
        return None
    if seen.uuid is not None:
        wanted = plain_uuid(seen.uuid)
        for device in nvml.devices:
            if device.uuid is not None and plain_uuid(device.uuid) == wanted:
                return device
    # Without a UUID only the order is left, and that only where both count the same devices.
    if selection.is_order_certain and len(selection.devices) == num_seen:
        return selection.devices[seen.index]
    return None


def _device(
    seen: TorchDevice, known: NvmlDevice | None, nvml: NvmlView, host: HostMemory
) -> Device | None:
    total_bytes, free_bytes, memory_from = seen.total_bytes, seen.free_bytes, seen.memory_from
    if seen.is_integrated:
        limits = [] if total_bytes is None else [total_bytes]
        total_bytes = min([host.total_bytes, *limits])
        free_bytes, memory_from = min(host.available_bytes, total_bytes), FROM_HOST
    elif known is not None and known.total_bytes and not known.is_divided:
        # A smaller total in torch is a share that somebody cut out of the device for this process.
        is_cut = total_bytes is not None and total_bytes < _SAME_SIZE_RATIO * known.total_bytes
        if not is_cut:
            total_bytes, free_bytes, memory_from = known.total_bytes, known.free_bytes, FROM_NVML
    if not total_bytes or free_bytes is None:
        return None
    told = known or NvmlDevice(index=-1)
    return Device(
        kind=seen.kind,
        index=seen.index,
        name=seen.name if known is None else known.name,
        uuid=seen.uuid if known is None else known.uuid,
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        memory_from=memory_from,
        is_integrated=seen.is_integrated,
        mig=told.is_instance or told.is_divided,
        nvml_index=None if known is None else known.index,
        driver=nvml.driver if seen.kind == "cuda" else None,
        processes=told.processes,
        utilization_percent=told.utilization_percent,
        power_w=told.power_w,
        temperature_celsius=told.temperature_celsius,
    )


def _neighbours(device: Device) -> list[Finding]:
    if not device.processes:
        return []
    known = [p.used_bytes for p in device.processes if p.used_bytes is not None]
    is_busy = (device.utilization_percent or 0.0) >= _WORTH_SAYING_PERCENT
    if len(known) == len(device.processes) and sum(known) < _WORTH_SAYING_BYTES and not is_busy:
        return []
    num = len(device.processes)
    who = "another process holds" if num == 1 else f"{num} other processes hold"
    held = mib(sum(known)) if known else "memory that the driver does not count"
    numbers = ", ".join(str(process.process) for process in device.processes)
    busy = f" and keeps it {device.utilization_percent:.0f} % busy" if is_busy else ""
    return [
        Finding(
            cause=(
                f"Device {device.index} ({device.name}): {who} {held} (process {numbers}){busy}; "
                "timings are unreliable."
            ),
            remedy="Wait until it is free, or choose another device with CUDA_VISIBLE_DEVICES.",
        )
    ]


def _without_nvml(nvml: NvmlView, torch: TorchView) -> list[Finding]:
    fault = nvml.fault
    if fault is None:
        return []
    if torch.devices:
        return [
            Finding(
                cause=(
                    f"NVML not available: {fault.cause}; "
                    "no power or other-process figures, the memory is torch's own reading."
                ),
                is_problem=False,
            )
        ]
    return [
        Finding(
            cause=f"No NVIDIA device can be used: {fault.cause}.",
            remedy=fault.remedy,
            is_problem=not nvml.is_library_missing,
        )
    ]


def _unused(torch: TorchView, selection: Selection) -> list[Finding]:
    usable = [device for device in selection.devices if device.fault is None]
    if not usable or torch.devices:
        return []
    remedy = (
        "Check that the driver is new enough for the installed torch."
        if torch.has_cuda
        else "Install a torch build with CUDA."
    )
    names = ", ".join(device.name for device in usable)
    return [Finding(cause=f"torch does not use the device that is there: {names}.", remedy=remedy)]
