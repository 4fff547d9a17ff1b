"""What a training process occupies of a device beside the tensors of its steps.

Some of it lies outside the allocator, where torch does not see it; some lies inside, but no trace
of the step's tensors shows it. Each is a layer with its own number, and says where that comes from:
measured on the machine where its probe could, else assumed after a source.

Sources of what is assumed:

* matrix workspaces: `aten/src/ATen/cuda/CublasHandlePool.cpp` of PyTorch 2.11. cuBLAS gets
  8 519 680 bytes, 32 MiB on compute capability 9.0; hipBLAS 32 MiB, 128 MiB on gfx94x and gfx95x;
  one for each thread that multiplies, of which training has two, the caller's and autograd's.
  cuBLASLt gets 1 MiB before Ampere, 4 MiB before Hopper and 32 MiB from then on, hipBLASLt 76 MiB.
* context with the kernels that training loads: 500 MB, the upper end of what public estimators and
  reports give for CUDA 12 on one process.
* communication buffers: 544 MB in a group of two and 688 MB in one of four on A100 with NVLink
  (NVIDIA/nccl issue 864 and its kin), between and beyond them along that line; RCCL about 1 GiB.
* the driver's own share of a device in a data sheet: torch reports a total 0.3 to 0.9 GiB below
  the driver's on devices of 15 to 80 GiB.
* gradient buckets of DistributedDataParallel: one copy of what is trained, alive all the time
  (`torch/nn/parallel/distributed.py`); with the default view setting the gradients stay beside it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autotune.cost.memory import devices
from autotune.cost.memory.devices import capability_of
from autotune.errors import UsageError
from probes.link import BUFFERS
from probes.machine import Machine
from probes.reading import CONTEXT, WORKSPACES

MIB = 1024**2
GIB = 1024**3
MB = 1000**2

Basis: TypeAlias = Literal[
    "traced", "modelled", "by rule", "measured on this machine", "assumed", "stated"
]
"""Where a number comes from."""
Place: TypeAlias = Literal["allocator", "outside"]

READINGS = (CONTEXT, WORKSPACES, BUFFERS)
"""Names of the readings that measure some of it."""

CUBLAS_BYTES = (2 * 4096 + 8 * 16) * 1024
HOPPER_CUBLAS_BYTES = 32 * MIB
HIPBLAS_BYTES = 32 * MIB
CDNA3_HIPBLAS_BYTES = 128 * MIB
HIPBLASLT_BYTES = 76 * MIB
NUM_MULTIPLYING_THREADS = 2
CONTEXT_BYTES = 500 * MB
DRIVER_BYTES = 512 * MIB
PROCESS_BYTES = 450 * MIB
"""Resident after the imports of a training process on a CPU."""
DDP_BUCKET_BYTES = 25 * MIB
AVERAGING_BUCKET_BYTES = 64 * MIB
"""What averaging the parameters copies at once; a test holds it against the code that averages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One part of what a process occupies."""

    name: str
    num_bytes: int
    basis: Basis
    source: str
    """In words: what was measured, or whose statement it is."""
    place: Place
    blocks: tuple[int, ...] = ()
    """What is allocated one by one, where it lies inside the allocator."""

    def to_json(self) -> dict[str, object]:
        """The public JSON form."""
        return {
            "name": self.name,
            "bytes": self.num_bytes,
            "basis": self.basis,
            "source": self.source,
            "place": self.place,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The device that is estimated for."""

    name: str
    kind: str
    """torch's device type; `cuda` for AMD's devices too, as torch names them."""
    architecture: str | None = None
    """`sm_89`, `gfx942`; None where it is not known."""
    total_bytes: int
    """What the process may occupy in all, the margin not yet taken off."""
    total_from: str
    """Who says so."""
    driver_bytes: int = 0
    """What the driver keeps of it."""
    machine: Machine | None = None
    """The machine with the device, where that is this one."""

    @property
    def is_cpu(self) -> bool:
        """Whether training runs without an accelerator."""
        return self.kind == "cpu"

    @property
    def num_threads(self) -> int:
        """That a CPU computes with, as far as the machine is known; a device counts as one."""
        return self.machine.host.num_threads if self.is_cpu and self.machine is not None else 1

    @property
    def is_amd(self) -> bool:
        """Whether the device is AMD's."""
        return self.architecture is not None and self.architecture.startswith("gfx")

    @property
    def capability(self) -> tuple[int, int] | None:
        """CUDA's compute capability, where it is known."""
        return capability_of(self.architecture or "")


def target_here(machine: Machine, *, total_bytes: int, total_from: str) -> Target:
    """The device that a machine trains on, as one that is reckoned for.

    Args:
        machine: With the device.
        total_bytes: What the process may occupy in all.
        total_from: Who says so.
    """
    device = machine.device
    architecture = None
    if device.kind == "cuda":
        with contextlib.suppress(UsageError):
            architecture = devices.find(device.name).architecture
    return Target(
        name=device.name,
        kind=device.kind,
        architecture=architecture,
        total_bytes=total_bytes,
        total_from=total_from,
        machine=machine,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How many processes train together, and what they exchange."""

    world_size: int = 1
    trained_bytes: int = 0
    """Gradients of everything that is trained."""
    averages: bool = False
    """Whether they average parameters now and then (local SGD)."""


ALONE = Ranks()
"""One process, which exchanges nothing."""


def workspaces(target: Target) -> tuple[Layer, ...]:
    """What the libraries for matrix products keep of the allocator's memory."""
    if target.kind != "cuda":
        return ()
    measured = _measured(target, WORKSPACES)
    if measured is not None:
        return (
            Layer(
                name="matrix workspaces",
                num_bytes=measured,
                basis="measured on this machine",
                source="kept by the allocator after matrix products and their backward pass",
                place="allocator",
                blocks=(measured,),
            ),
        )
    if target.is_amd:
        arch = target.architecture or ""
        blas = CDNA3_HIPBLAS_BYTES if arch.startswith(("gfx94", "gfx95")) else HIPBLAS_BYTES
        names, light = ("hipBLAS", "hipBLASLt"), HIPBLASLT_BYTES
    else:
        # Of a device whose architecture nobody told, the larger one is safe.
        capability = target.capability or (9, 0)
        blas = HOPPER_CUBLAS_BYTES if capability == (9, 0) else CUBLAS_BYTES
        names = ("cuBLAS", "cuBLASLt")
        light = (1 if capability < (8, 0) else 4 if capability < (9, 0) else 32) * MIB
    whose = target.architecture or "an architecture that was not told"
    return (
        Layer(
            name=f"{names[0]} workspaces",
            num_bytes=NUM_MULTIPLYING_THREADS * blas,
            basis="assumed",
            source=f"{NUM_MULTIPLYING_THREADS} threads, PyTorch's size for {whose}",
            place="allocator",
            blocks=(blas,) * NUM_MULTIPLYING_THREADS,
        ),
        Layer(
            name=f"{names[1]} workspace",
            num_bytes=light,
            basis="assumed",
            source=f"PyTorch's size for {whose}",
            place="allocator",
            blocks=(light,),
        ),
    )


def buckets(ranks: Ranks) -> tuple[Layer, ...]:
    """What data parallel training keeps of the allocator's memory beside the gradients."""
    if ranks.world_size == 1 or not ranks.trained_bytes:
        return ()
    whole, rest = divmod(ranks.trained_bytes, DDP_BUCKET_BYTES)
    return (
        Layer(
            name="gradient buckets",
            num_bytes=ranks.trained_bytes,
            basis="by rule",
            source="DistributedDataParallel keeps a copy of all gradients",
            place="allocator",
            blocks=(DDP_BUCKET_BYTES,) * whole + ((rest,) if rest else ()),
        ),
    )


def averaging_bytes(ranks: Ranks) -> int:
    """What averaging the parameters copies at once, after an optimizer step; 0 without it."""
    if ranks.world_size == 1 or not ranks.averages:
        return 0
    return min(ranks.trained_bytes, AVERAGING_BUCKET_BYTES)


def outside(target: Target, ranks: Ranks, *, process_bytes: int | None = None) -> tuple[Layer, ...]:
    """What torch's allocator does not see.

    Args:
        target: The device.
        ranks: How many processes train together.
        process_bytes: Resident memory of a training process after its imports, where it was
            measured; it counts on a CPU.
    """
    if target.is_cpu:
        is_known = process_bytes is not None
        return (
            Layer(
                name="process",
                num_bytes=PROCESS_BYTES if process_bytes is None else process_bytes,
                basis="measured on this machine" if is_known else "assumed",
                source="resident after the imports of a training process",
                place="outside",
            ),
        )
    layers = [_context(target)]
    if target.driver_bytes:
        layers.append(
            Layer(
                name="driver",
                num_bytes=target.driver_bytes,
                basis="assumed",
                source="torch sees less than the driver's total",
                place="outside",
            )
        )
    if ranks.world_size > 1:
        layers.append(_communication(target, ranks.world_size))
    return tuple(layers)


def _context(target: Target) -> Layer:
    measured = _measured(target, CONTEXT)
    if measured is not None:
        return Layer(
            name="context",
            num_bytes=measured,
            basis="measured on this machine",
            source="device memory before and after a warm step of matrix products",
            place="outside",
        )
    return Layer(
        name="context",
        num_bytes=CONTEXT_BYTES,
        basis="assumed",
        source="upper end of public reports for one process",
        place="outside",
    )


def _communication(target: Target, world_size: int) -> Layer:
    links = target.machine.links if target.machine is not None else ()
    for link in links:
        if link.num_ranks == world_size and link.device_kind == target.kind:
            for reading in link.readings:
                if reading.name == BUFFERS:
                    return Layer(
                        name="communication buffers",
                        num_bytes=round(reading.value),
                        basis="measured on this machine",
                        source=f"device memory around the first collectives of {world_size} ranks",
                        place="outside",
                    )
    if target.is_amd:
        num_bytes, source = GIB, "public reports of RCCL's first communicator"
    else:
        num_bytes = (544 + 72 * (world_size - 2)) * MB
        source = "reports of NCCL in groups of 2 and 4 on A100 with NVLink"
    return Layer(
        name="communication buffers",
        num_bytes=num_bytes,
        basis="assumed",
        source=source,
        place="outside",
    )


def _measured(target: Target, name: str) -> int | None:
    reading = target.machine.reading(name) if target.machine is not None else None
    return None if reading is None else round(reading.value)
