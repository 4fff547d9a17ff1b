"""What training takes of a device beside its tensors, measured in a child that is gone afterwards.

The child does one small training step, so that the device's context holds the kernels that training
loads and the libraries for matrix products have their workspaces. What the device lost meanwhile
and the allocator does not hold is the context; what the allocator still hands out once every tensor
is gone are the workspaces.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import TYPE_CHECKING, TextIO

from probes.child import run_module
from probes.devices.nvml import Fault, ask
from probes.machine import Device
from probes.reading import CONTEXT, WORKSPACES, Reading

if TYPE_CHECKING:
    from torch import device as TorchDevice  # noqa: N812 - a class in all but its name

_WIDTH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """What a device and its allocator say before the step and after it."""

    free_before_bytes: int
    """Of the device, before this process touched it."""
    free_after_bytes: int
    reserved_bytes: int
    """Held by the allocator afterwards."""
    allocated_bytes: int
    """Still handed out by the allocator, with every tensor gone."""


def measure(device: Device, *, time_limit_s: float) -> list[Reading]:
    """The context and the workspaces of a device; none where its driver cannot be asked first.

    That takes NVML: torch makes the context by asking.

    Args:
        device: Where to measure.
        time_limit_s: The child is ended after this time.
    """
    if device.nvml_index is None or device.is_integrated or device.mig:
        return []
    result = run_module(
        "probes.context",
        [device.kind, str(device.index), str(device.nvml_index)],
        time_limit_s=time_limit_s,
    )
    for line in result.lines:
        with contextlib.suppress(ValueError, TypeError):
            return readings(Levels(**json.loads(line)))
    return []


def readings(levels: Levels) -> list[Reading]:
    """The readings that the levels give; what another process disturbed is left out.

    Args:
        levels: Of the device and its allocator.
    """
    context_bytes = levels.free_before_bytes - levels.free_after_bytes - levels.reserved_bytes
    found = []
    if context_bytes > 0:
        found.append(
            Reading(
                name=CONTEXT,
                unit="bytes",
                value=float(context_bytes),
                samples=(float(context_bytes),),
                note="device memory that one process takes outside torch's allocator after a step",
            )
        )
    found.append(
        Reading(
            name=WORKSPACES,
            unit="bytes",
            value=float(levels.allocated_bytes),
            samples=(float(levels.allocated_bytes),),
            note="kept inside torch's allocator by the libraries for matrix products",
        )
    )
    return found


def main(arguments: list[str], out: TextIO) -> int:
    """The child: one step, and the levels around it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("index", type=int)
    parser.add_argument("nvml_index", type=int)
    options = parser.parse_args(arguments)
    import pynvml

    free_before_bytes = free_bytes(pynvml, options.nvml_index)
    if free_before_bytes is None:
        return 1
    import torch

    train_step(torch, torch.device(options.kind, options.index))
    gc.collect()
    torch.accelerator.synchronize()
    free_after_bytes = free_bytes(pynvml, options.nvml_index)
    if free_after_bytes is None:
        return 1
    statistics = getattr(torch, options.kind)
    levels = Levels(
        free_before_bytes=free_before_bytes,
        free_after_bytes=free_after_bytes,
        reserved_bytes=int(statistics.memory_reserved(options.index)),
        allocated_bytes=int(statistics.memory_allocated(options.index)),
    )
    out.write(json.dumps(asdict(levels)) + "\n")
    out.flush()
    return 0


def free_bytes(binding: ModuleType, nvml_index: int) -> int | None:
    """Free memory of a device, without making a context on it; None where NVML does not say.

    Args:
        binding: A module with the functions of `pynvml`.
        nvml_index: NVML's number of the device.
    """
    started = ask(binding, "nvmlInit")
    if isinstance(started, Fault):
        return None
    try:
        handle = ask(binding, "nvmlDeviceGetHandleByIndex", nvml_index)
        memory = (
            handle if isinstance(handle, Fault) else ask(binding, "nvmlDeviceGetMemoryInfo", handle)
        )
        return None if isinstance(memory, Fault) else int(memory.free)
    finally:
        ask(binding, "nvmlShutdown")


def train_step(torch: ModuleType, device: TorchDevice) -> None:
    """A training step with the kinds of kernels that transformers need, forward and backward.

    Args:
        torch: The module.
        device: Where to train.
    """
    functional = torch.nn.functional
    layers = torch.nn.Sequential(
        torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.GELU(), torch.nn.LayerNorm(_WIDTH)
    ).to(device)
    optimizer = torch.optim.AdamW(layers.parameters(), foreach=True)
    for is_mixed in (False, True):
        inputs = torch.randn(4, 64, _WIDTH, device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_mixed):
            heads = layers(inputs).unflatten(-1, (4, -1)).transpose(1, 2)
            mixed = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
            scores = mixed.transpose(1, 2).flatten(-2) @ layers[0].weight
        loss = functional.cross_entropy(
            scores.float().flatten(0, 1), torch.zeros(256, dtype=torch.long, device=device)
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layers.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
