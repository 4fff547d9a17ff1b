"""What the training process may occupy here, and what speaks against measuring on this machine."""

from __future__ import annotations

import os

from autotune.request import Request
from autotune.search.session import Session
from autotune.units import format_bytes
from probes.machine import Machine

BUSY_FRACTION = 0.5
"""Load average over cores from which a machine is too busy to time anything on it well."""


def num_local_ranks(request: Request) -> int:
    """How many of the ranks share a machine."""
    return max(1, request.processes // request.num_nodes)


def memory_limit(request: Request, machine: Machine) -> tuple[int, str]:
    """What the training process may occupy, and who says so."""
    device = machine.device
    wanted = request.goal.memory_limit_bytes
    free_bytes = device.usable_bytes
    place = "free on this machine" if device.kind == "cpu" else f"free on {device.name}"
    num_ranks = num_local_ranks(request)
    least_bytes = request.least_device_bytes
    if least_bytes is not None and least_bytes < free_bytes:
        free_bytes, place = least_bytes, "there on the smallest of the nodes"
    if device.kind == "cpu" and num_ranks > 1:
        free_bytes //= num_ranks
        place = f"a share of what is free on this machine for each of {num_ranks} ranks"
    if wanted is not None and wanted <= free_bytes:
        return wanted, "the limit you set"
    if wanted is not None:
        place += f"; the {format_bytes(wanted)} you allowed are not there"
    return free_bytes, place


def warn_about_machine(
    session: Session, request: Request, machine: Machine, limit_bytes: int
) -> None:
    """Tells what of the machine will spoil what is measured, and where the limit is not the user's.

    Args:
        session: Where it is told.
        request: What was asked for.
        machine: Where the trials run.
        limit_bytes: What the training process may occupy.
    """
    for finding in machine.findings:
        if finding.is_problem:
            session.warn(finding.cause, finding.remedy)
    wanted = request.goal.memory_limit_bytes
    if wanted is not None and wanted > limit_bytes:
        session.warn(
            f"--memory-limit allows {format_bytes(wanted)}, but only {format_bytes(limit_bytes)} "
            "are free now.",
            "The smaller figure is used; free memory to use more.",
        )
    if machine.device.kind == "cpu" and hasattr(os, "getloadavg"):
        busy = os.getloadavg()[0]
        if busy > BUSY_FRACTION * machine.host.num_cores:
            session.warn(
                f"Other work keeps this machine busy: a load of {busy:.1f} on "
                f"{machine.host.num_cores:g} cores. Timings will be slow and their intervals wide.",
                "Let the other work end first, or read the intervals before the figures.",
            )
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(request.workload.precision)
    if dtype is not None and machine.only_pretends(dtype):
        session.warn(
            f"This machine only pretends to have {dtype}: it computes it by detours, far slower "
            "than float32.",
            "Use --precision fp32 here, or tune on the machine that will train.",
        )
