"""Which of NVML's devices CUDA shows a process, and in which order: `CUDA_VISIBLE_DEVICES`.

torch's own view is better wherever torch can be asked; this one needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from probes.devices.nvml import NvmlDevice, NvmlView
from probes.machine import Finding

VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a process sees."""

    devices: tuple[NvmlDevice, ...]
    """In CUDA's order, lost ones included, since CUDA counts them."""
    is_order_certain: bool = True
    """False where CUDA orders different devices by speed, which NVML cannot tell."""
    findings: tuple[Finding, ...] = ()


def select(nvml: NvmlView, environment: Mapping[str, str]) -> Selection:
    """Reads the variable as the CUDA driver does.

    The list ends at its first entry that is no device; an entry given twice hides everything; a
    UUID may be shortened as long as it stays unique; of MIG instances a process sees one.
    """
    whole = [device for device in nvml.devices if not device.is_instance]
    value = environment.get(VARIABLE)
    if value is None:
        chosen, findings = whole, list[Finding]()
    else:
        chosen, findings = _chosen(nvml, whole, value)
    by_number = value is None or not re.match(r"\s*(GPU|MIG)-", value)
    names = {device.name for device in whole}
    is_order_certain = (
        not by_number or len(names) <= 1 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    )
    return Selection(
        devices=_one_instance(nvml, chosen),
        is_order_certain=is_order_certain,
        findings=tuple(findings),
    )


def _chosen(
    nvml: NvmlView, whole: list[NvmlDevice], value: str
) -> tuple[list[NvmlDevice], list[Finding]]:
    chosen: list[NvmlDevice] = []
    findings: list[Finding] = []
    entries = [entry.strip() for entry in value.split(",")] if value.strip() else []
    for number, entry in enumerate(entries):
        device = _named(nvml, whole, entry)
        if device is None:
            ignored = entries[number + 1 :]
            cause = f"{VARIABLE} is {value!r}: its entry {entry!r} is no device"
            if ignored:
                cause += f", and the entries after it ({', '.join(ignored)}) are ignored"
            findings.append(
                Finding(
                    cause=f"{cause}; visible: {len(chosen)}.",
                    remedy=f"Name only devices that are there in {VARIABLE}.",
                )
            )
            break
        if device in chosen:
            findings.append(
                Finding(
                    cause=f"{VARIABLE} is {value!r}: it names a device twice, which hides all.",
                    remedy=f"Name each device once in {VARIABLE}.",
                )
            )
            return [], findings
        chosen.append(device)
    if whole and not chosen and not findings:
        findings.append(
            Finding(
                cause=f"{VARIABLE} is {value!r}: it hides every device.",
                remedy=f"Unset {VARIABLE} to train on a device.",
                is_problem=False,
            )
        )
    return chosen, findings


def _named(nvml: NvmlView, whole: list[NvmlDevice], entry: str) -> NvmlDevice | None:
    if entry.startswith(("GPU-", "MIG-")):
        # Before driver 470 an instance was named MIG-GPU-<parent>/<instance>/<compute instance>.
        found = [d for d in nvml.devices if d.uuid is not None and d.uuid.startswith(entry)]
        return found[0] if len(found) == 1 else None
    number = re.match(r"[+-]?\d+", entry)
    if number is None or not 0 <= int(number.group()) < len(whole):
        return None
    return whole[int(number.group())]


def _one_instance(nvml: NvmlView, chosen: list[NvmlDevice]) -> tuple[NvmlDevice, ...]:
    """Puts one instance in the place of every divided device, and keeps the first instance only."""
    devices: list[NvmlDevice] = []
    for device in chosen:
        if device.is_divided:
            instances = [d for d in nvml.devices if d.is_instance and d.index == device.index]
            devices += instances[:1]
        else:
            devices.append(device)
    first = next((device for device in devices if device.is_instance), None)
    return tuple(device for device in devices if not device.is_instance or device is first)
