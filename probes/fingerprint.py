"""What must not change for speeds that were measured once to hold still. Asks no torch."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from probes.devices.nvml import NvmlView
from probes.memory import read_text

MEASURING = 1
"""Counts up whenever the probes measure differently."""

_CHOOSING = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)
_COMPUTING = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "KMP_AFFINITY",
    "GOMP_CPU_AFFINITY",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "NVIDIA_TF32_OVERRIDE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Hardware, driver and measuring libraries, and the digests of them."""

    digest: str
    likeness: str
    """The same for every machine of the same make: no serial numbers, and no choice of devices."""
    versions: tuple[tuple[str, str], ...]


def fingerprint(
    nvml: NvmlView,
    *,
    num_cores: float,
    total_bytes: int,
    environment: Mapping[str, str],
    root: Path = Path("/"),
) -> Fingerprint:
    """Describes the machine by what its speeds depend on, and leaves out what any minute changes.

    Args:
        nvml: What NVML says.
        num_cores: Cores that a process may use.
        total_bytes: The host's memory, control groups left out.
        environment: Variables that choose devices and threads.
        root: Where `proc` and `sys` are looked for.
    """
    versions = {"python": platform.python_version(), "kernel": platform.release()}
    for name in ("torch", "nvidia-ml-py"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    driver = nvml.driver or _other_driver(root)
    if driver is not None:
        versions["driver"] = driver
    document = {
        "measuring": MEASURING,
        "versions": versions,
        "processor": processor(root),
        "architecture": platform.machine(),
        "num_cores": num_cores,
        # Kernels differ in the bytes that they keep to themselves.
        "total_gib": round(total_bytes / 2**30),
        "devices": [[d.uuid, d.name, d.total_bytes, d.is_instance] for d in nvml.devices],
        "fault": None if nvml.fault is None else nvml.fault.code,
        "environment": {name: environment.get(name) for name in (*_CHOOSING, *_COMPUTING)},
    }
    alike = document | {
        "devices": [[d.name, d.total_bytes, d.is_instance] for d in nvml.devices],
        "environment": {name: environment.get(name) for name in _COMPUTING},
    }
    return Fingerprint(
        digest=digest_of(document), likeness=digest_of(alike), versions=tuple(versions.items())
    )


def digest_of(document: object) -> str:
    """Sixteen characters that change with any part of a JSON document."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def processor(root: Path = Path("/")) -> str:
    """The CPU's name, as the kernel tells it.

    Args:
        root: Where `proc` is looked for.
    """
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        field, _, value = line.partition(":")
        if field.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "CPU"


def _other_driver(root: Path) -> str | None:
    """The version of AMD's kernel driver, where it is loaded."""
    return read_text(root / "sys/module/amdgpu/version")
