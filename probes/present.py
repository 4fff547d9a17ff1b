"""The machine at this moment, without its speeds: what is read, not measured. Loads no torch."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping
from pathlib import Path

from probes.devices import joined
from probes.devices.nvml import NvmlView
from probes.devices.torch_devices import TorchView
from probes.fingerprint import digest_of, fingerprint, processor
from probes.machine import Device, Host, Machine
from probes.memory import read_host_total_bytes, read_memory, read_num_cores


def present(
    nvml: NvmlView,
    torch: TorchView,
    *,
    environment: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> Machine:
    """Reads host, devices and what is to be said of them.

    Args:
        nvml: What NVML says.
        torch: What torch says, or what is taken to be its view.
        environment: Variables that a training process will see.
        root: Where `proc` and `sys` are looked for.
    """
    memory = read_memory(root)
    num_cores = read_num_cores(root)
    found = joined.join(nvml, torch, memory, processor=processor(root), environment=environment)
    state = fingerprint(
        nvml,
        num_cores=num_cores,
        total_bytes=read_host_total_bytes(root),
        environment=environment,
        root=root,
    )
    return Machine(
        host=Host(
            name=socket.gethostname(),
            processor=processor(root),
            num_cores=num_cores,
            total_bytes=memory.total_bytes,
            available_bytes=memory.available_bytes,
            limit_from=memory.limit_from,
            platform=platform.platform(),
            num_threads=torch.num_threads or max(1, int(num_cores)),
        ),
        devices=found.devices,
        findings=found.findings,
        versions=state.versions,
        digest=state.digest,
        likeness=digest_of([state.likeness, *map(_make, found.devices)]),
    )


def _make(device: Device) -> list[object]:
    """What is the same for every device of this make; the memory of a CPU is the host's."""
    total_gib = 0 if device.kind == "cpu" else round(device.total_bytes / 2**30)
    return [device.kind, device.name, total_gib, device.mig]
