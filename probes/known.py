"""The machine as it is known now, without torch in this process.

Speeds are kept from an earlier survey as long as hardware, driver and libraries are the same;
memory, other processes and limits are read anew every time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from probes import store
from probes.child import ChildResult, run_module
from probes.devices import nvml
from probes.devices.joined import FROM_HOST, FROM_NVML, assumed
from probes.devices.nvml import NvmlView
from probes.devices.torch_devices import TorchDevice, TorchView
from probes.machine import Finding, Machine, machine_adapter
from probes.present import present
from probes.survey import (
    TIME_LIMIT_S,
    SurveyProgress,
    progress_adapter,
    try_allocation,
    with_kept_speeds,
)

_START_S = 30.0
"""Time beyond the survey's own that its process gets to start and to load torch."""


def known_machine(
    *,
    fresh: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
    on_progress: Callable[[SurveyProgress], None] | None = None,
    on_wait: Callable[[], None] = lambda: None,
) -> Machine:
    """The machine now, from kept speeds where they hold, else from a survey in a child process.

    Never raises for what is wrong with the machine: that stands in the findings.

    Args:
        fresh: Measure the speeds again.
        time_limit_s: Time for a survey.
        on_progress: Is told of every probe of a survey as it begins.
        on_wait: Called several times a second during a survey; what it raises ends it.
    """
    view = nvml.look()
    if not fresh:
        machine = refreshed(view, store.cache_directory(), environment=os.environ)
        if machine is not None:
            return machine
    return run_in_child(time_limit_s, fresh=fresh, on_progress=on_progress, on_wait=on_wait)


def refreshed(
    view: NvmlView, directory: Path | None, *, environment: Mapping[str, str]
) -> Machine | None:
    """Kept speeds with everything else read now, where that needs no torch.

    That is so for the CPU of a machine without other devices, and for CUDA devices that NVML or
    the host tell the memory of.

    Args:
        view: What NVML says now.
        directory: The cache.
        environment: Variables that a training process will see.

    Returns:
        The machine; None where nothing is kept or torch has to be asked.
    """
    # What torch sees does not belong to the digest, so any view finds the kept survey.
    digest = present(view, TorchView(), environment=environment).digest
    kept = store.load(digest, directory)
    if kept is None:
        return None
    seen = _torch_view_of(kept, view)
    if seen is None:
        return None
    machine = present(view, seen, environment=environment)
    if _places(machine) != _places(kept):
        return None
    if machine.device.kind == "cpu":
        machine = try_allocation(machine, time_limit_s=10.0)
    return with_kept_speeds(machine, kept)


def run_in_child(
    time_limit_s: float = TIME_LIMIT_S,
    *,
    fresh: bool = False,
    on_progress: Callable[[SurveyProgress], None] | None = None,
    on_wait: Callable[[], None] = lambda: None,
) -> Machine:
    """Surveys in a child process, whose torch and device contexts are gone afterwards.

    A child that crashes or hangs is ended; then the machine is what can be read without torch, and
    a finding says so.

    Args:
        time_limit_s: Time for the survey.
        fresh: Measure the speeds again though they are kept.
        on_progress: Is told of every probe as it begins.
        on_wait: Called several times a second; what it raises ends the survey.
    """
    found: list[Machine] = []

    def hear(line: str) -> None:
        said = _said(line)
        if isinstance(said, Machine):
            found.append(said)
        elif said is not None and on_progress is not None:
            on_progress(said)

    whole_s = time_limit_s + _START_S
    result = run_module(
        "probes.survey",
        ["--time-limit-s", str(time_limit_s), *(["--fresh"] if fresh else [])],
        time_limit_s=whole_s,
        on_line=hear,
        on_wait=on_wait,
    )
    return found[-1] if found else _without_torch(result, whole_s)


def _said(line: str) -> Machine | SurveyProgress | None:
    try:
        said = json.loads(line)
        if "machine" in said:
            return machine_adapter().validate_python(said["machine"])
        return progress_adapter().validate_python(said["progress"])
    except (ValueError, KeyError, TypeError):  # pydantic's error is a ValueError
        return None


def _without_torch(result: ChildResult, whole_s: float) -> Machine:
    if result.is_timed_out:
        how = f"did not end within {whole_s:g} s"
    elif result.returncode < 0:
        how = f"was ended by signal {-result.returncode}"
    else:
        how = f"ended with code {result.returncode}"
    reason = f": {result.last_error}" if result.last_error else ""
    view = nvml.look()
    machine = present(view, assumed(view, os.environ))
    finding = Finding(
        cause=f"The survey's process {how}{reason.rstrip('.')}.",
        remedy="Only what can be read without torch is known; speeds are not.",
    )
    return replace(machine, findings=(*machine.findings, finding), probed_unix_s=time.time())


def _torch_view_of(kept: Machine, view: NvmlView) -> TorchView | None:
    """What torch saw in the kept survey, without memory; None where it must be asked again."""
    threads = kept.host.num_threads
    if all(device.kind == "cpu" for device in kept.devices):
        return None if view.devices else TorchView(num_threads=threads)
    for device in kept.devices:
        is_told = device.memory_from in (FROM_NVML, FROM_HOST)
        if device.kind != "cuda" or device.uuid is None or not is_told:
            return None
        if device.allocation_refused:
            return None
    return TorchView(
        devices=tuple(
            TorchDevice(
                kind=device.kind,
                index=device.index,
                name=device.name,
                uuid=device.uuid,
                is_integrated=device.is_integrated,
            )
            for device in kept.devices
        ),
        num_threads=threads,
    )


def _places(machine: Machine) -> list[tuple[str, str | None, str]]:
    # The CPU's memory is told by whatever limits it now.
    return [
        (device.kind, device.uuid, "" if device.kind == "cpu" else device.memory_from)
        for device in machine.devices
    ]
