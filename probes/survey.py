"""Every probe in order, with progress and a time limit. A probe that fails becomes a finding."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TextIO

from pydantic import TypeAdapter

from probes import allocation, context, matmul, store
from probes.copies import host_copies, memory_bandwidth
from probes.devices import nvml, torch_devices
from probes.devices.torch_devices import TorchView
from probes.machine import Device, Finding, Machine, Reading, machine_adapter
from probes.present import present
from probes.wording import first_line

TIME_LIMIT_S = 60.0
"""Time that a survey may take where the caller does not say."""

PROBES = (
    "devices and memory",
    "allocation",
    "memory bandwidth",
    "copies",
    "arithmetic rate",
    "context",
)
"""The probes in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyProgress:
    """A probe that begins now, and the readings that the ones before it took."""

    probe: str
    number: int
    """Counts from 1."""
    num_probes: int = len(PROBES)
    readings: tuple[Reading, ...] = ()


def survey(
    *,
    on_progress: Callable[[SurveyProgress], None] | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    kept: Machine | None = None,
) -> Machine:
    """Probes the machine in this process, which loads torch and makes contexts on its devices.

    Args:
        on_progress: Is told of every probe as it begins.
        time_limit_s: Probes that would begin later are left out, and that is said.
        kept: A survey of the machine with the same digest, whose speeds are taken as they are.
    """
    return _run(on_progress, time_limit_s, lambda digest: kept)[0]


def main(arguments: list[str], out: TextIO) -> int:
    """The child's survey: reuses and keeps speeds, tells progress and the machine as JSON lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--time-limit-s", type=float, default=TIME_LIMIT_S)
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args(arguments)
    directory = store.cache_directory()

    def tell(kind: str, text: bytes) -> None:
        out.write(json.dumps({kind: json.loads(text)}) + "\n")
        out.flush()

    machine, is_whole = _run(
        lambda progress: tell("progress", progress_adapter().dump_json(progress)),
        options.time_limit_s,
        lambda digest: None if options.fresh else store.load(digest, directory),
    )
    if is_whole and not machine.from_store:
        trouble = store.save(machine, directory)
        if trouble is not None:
            machine = replace(machine, findings=(*machine.findings, trouble))
    tell("machine", machine_adapter().dump_json(machine))
    return 0


def progress_adapter() -> TypeAdapter[SurveyProgress]:
    """The codec between progress and JSON."""
    return TypeAdapter(SurveyProgress)


@dataclass(slots=True)
class _Notes:
    """What a running survey has gathered."""

    deadline_s: float
    on_progress: Callable[[SurveyProgress], None] | None
    readings: list[Reading] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    is_whole: bool = True

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.deadline_s - time.monotonic())

    def begin(self, number: int) -> bool:
        """Tells that a probe begins; False where the time is over. The first is never left out."""
        if number > 0 and self.remaining_s <= 0:
            self.left_out.append(PROBES[number])
            self.is_whole = False
            return False
        if self.on_progress is not None:
            self.on_progress(
                SurveyProgress(
                    probe=PROBES[number], number=number + 1, readings=tuple(self.readings)
                )
            )
        return True

    @contextmanager
    def guarding(self, what: str) -> Iterator[None]:
        """Turns whatever a probe raises into a finding."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a probe must never end the survey
            self.is_whole = False
            reason = f"{type(error).__name__}: {first_line(error)}"
            self.findings.append(
                Finding(
                    cause=f"The probe of {what} failed: {reason}.",
                    remedy="The rest of the survey holds; probe again to try once more.",
                )
            )


def _run(
    on_progress: Callable[[SurveyProgress], None] | None,
    time_limit_s: float,
    find_kept: Callable[[str], Machine | None],
) -> tuple[Machine, bool]:
    """The machine, and whether every probe did its work."""
    notes = _Notes(deadline_s=time.monotonic() + time_limit_s, on_progress=on_progress)
    notes.begin(0)
    # NVML comes first: the context that torch makes would count as used memory.
    nvml_view = nvml.NvmlView()
    with notes.guarding("NVML"):
        nvml_view = nvml.look()
    torch: ModuleType | None = None
    torch_view = TorchView()
    with notes.guarding("torch"):
        import torch as loaded

        torch = loaded
        torch_view = torch_devices.look(loaded)
        notes.is_whole = notes.is_whole and not torch_view.findings
    machine = present(nvml_view, torch_view)

    if notes.begin(1):
        with notes.guarding("the allocation"):
            machine = try_allocation(machine, time_limit_s=notes.remaining_s)
    kept = find_kept(machine.digest)
    if kept is not None:
        return with_kept_speeds(machine, kept), True
    if torch is not None:
        _measure(torch, machine.device, notes, num_devices=len(machine.devices))
    if notes.left_out:
        notes.findings.append(
            Finding(
                cause=(
                    f"The time limit of {time_limit_s:g} s ended the survey before: "
                    f"{', '.join(notes.left_out)}."
                ),
                remedy="Allow it more time.",
            )
        )
    machine = replace(
        machine,
        readings=(*machine.readings, *notes.readings),
        findings=(*machine.findings, *notes.findings),
        probed_unix_s=time.time(),
    )
    return machine, notes.is_whole


def try_allocation(machine: Machine, *, time_limit_s: float) -> Machine:
    """Tries a real allocation on the device that decides, and notes how it went.

    Args:
        machine: What was read.
        time_limit_s: Time for the child that tries.
    """
    device = machine.device
    tried = allocation.attempt(device, time_limit_s=min(time_limit_s, 30.0))
    if tried is None:
        finding = Finding(
            cause=f"No allocation on {device.kind}:{device.index} could be tried.",
            remedy="The free memory is taken as it is told.",
        )
        return replace(machine, findings=(*machine.findings, finding))
    with_try, reading, findings = allocation.with_attempt(device, tried)
    return replace(
        machine,
        devices=tuple(with_try if one == device else one for one in machine.devices),
        readings=(*machine.readings, reading),
        findings=(*machine.findings, *findings),
    )


def with_kept_speeds(machine: Machine, kept: Machine) -> Machine:
    """A machine read now, with the speeds of an earlier survey.

    Args:
        machine: What was read and tried now.
        kept: A survey of the machine with the same digest.
    """
    of_now = {reading.name for reading in machine.readings} | {allocation.READING}
    return replace(
        machine,
        readings=(*machine.readings, *(r for r in kept.readings if r.name not in of_now)),
        findings=(*machine.findings, *(f for f in kept.findings if f.lasts)),
        probed_unix_s=kept.probed_unix_s,
        from_store=True,
    )


def _measure(torch: ModuleType, device: Device, notes: _Notes, *, num_devices: int) -> None:
    readings = notes.readings
    first = len(readings)
    if notes.begin(2):
        with notes.guarding("memory bandwidth"):
            readings.append(memory_bandwidth(torch, device))
    if device.kind != "cpu" and notes.begin(3):
        with notes.guarding("copies between host and device"):
            readings.extend(host_copies(torch, device))
    if notes.begin(4):
        with notes.guarding("arithmetic rate"):
            _measure_dtypes(torch, device, notes)
    if device.kind != "cpu" and notes.begin(5):
        with notes.guarding("context"):
            readings.extend(context.measure(device, time_limit_s=max(10.0, notes.remaining_s)))
    if num_devices > 1:
        readings[first:] = [_on(device, reading) for reading in readings[first:]]


def _measure_dtypes(torch: ModuleType, device: Device, notes: _Notes) -> None:
    float32 = matmul.rate(torch, device, matmul.DTYPES[0])
    notes.readings.append(float32)
    for dtype in matmul.DTYPES[1:]:
        try:
            reading = matmul.rate(torch, device, dtype)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError) as error:
            notes.findings.append(matmul.missing(dtype, error))
            continue
        notes.readings.append(reading)
        finding = matmul.pretended(dtype, reading, float32)
        if finding is not None:
            notes.findings.append(finding)
    if matmul.has_tf32(torch, device):
        notes.readings.append(matmul.rate(torch, device, "float32", tf32=True))


def _on(device: Device, reading: Reading) -> Reading:
    place = f"measured on {device.kind}:{device.index} ({device.name})"
    return replace(reading, note=f"{reading.note}; {place}" if reading.note else place)
