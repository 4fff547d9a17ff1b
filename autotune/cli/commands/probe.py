"""`autotune probe`: the machine in figures."""

from __future__ import annotations

import typer

from autotune.cli import documents, options, summary
from autotune.cli.job import Reader, one_process
from autotune.display import output
from autotune.errors import DeviceError, ExitCode
from autotune.units import format_bytes, format_quantity, format_seconds
from probes.known import known_machine
from probes.machine import Device, Finding, Machine, Reading, machine_adapter
from probes.survey import SurveyProgress


def run(context: typer.Context, chosen: options.Probe) -> int:
    """Runs the command."""
    one_process(Reader(context), chosen.processes)
    machine = known_machine(fresh=chosen.fresh, on_progress=_tell)
    if chosen.json:
        output.document(
            {
                "schema": documents.SCHEMA,
                "machine": machine_adapter().dump_python(machine, mode="json"),
            }
        )
    else:
        output.data(_text(machine))
    if not machine.readings:
        trouble = next((f for f in machine.findings if f.is_problem), None)
        output.report(
            DeviceError(
                trouble.cause if trouble else "No probe could measure anything.",
                trouble.remedy if trouble else "`autotune doctor` shows what is there.",
            )
        )
        return ExitCode.DEVICE
    return ExitCode.OK


def _tell(progress: SurveyProgress) -> None:
    output.talk(f"Probing {progress.probe} ({progress.number} of {progress.num_probes})")


def _text(machine: Machine) -> str:
    host = machine.host
    rows = [
        ("host", f"{output.one_line(host.processor)}, {host.num_cores:g} cores"),
        (
            "memory",
            f"{format_bytes(host.available_bytes)} available of {format_bytes(host.total_bytes)} "
            f"({host.limit_from})",
        ),
        *((f"{d.kind}:{d.index}", device(d)) for d in machine.devices),
    ]
    lines = summary.table([], rows)
    if machine.readings:
        head = ("measured", "median", "± half the IQR", "n", "")
        readings = [_row(reading) for reading in machine.readings]
        lines += ["", *summary.table(head, readings, right=(1, 2, 3))]
    if machine.from_store:
        lines += [
            "",
            "Speeds are kept from before, the machine is unchanged; --fresh repeats them.",
        ]
    return "\n".join([*lines, *findings(machine.findings)])


def device(device: Device) -> str:
    """A device with its memory and its company."""
    text = (
        f"{output.one_line(device.name)}, {format_bytes(device.free_bytes)} free of "
        f"{format_bytes(device.total_bytes)} ({output.one_line(device.memory_from)})"
    )
    if device.allocation_refused and device.allocatable_bytes is not None:
        text += f", {format_bytes(device.allocatable_bytes)} could be had"
    if device.mig:
        text += ", MIG instance"
    if device.driver:
        text += f", driver {device.driver}"
    if device.processes:
        text += f", {len(device.processes)} other processes"
    return text


def findings(found: tuple[Finding, ...]) -> list[str]:
    """What is to be said of the machine."""
    if not found:
        return []
    return [
        "",
        *(
            f"{'▲' if finding.is_problem else '·'} "
            + output.one_line(f"{finding.cause} {finding.remedy or ''}")
            for finding in found
        ),
    ]


def _row(reading: Reading) -> tuple[str, ...]:
    spread = f"{100 * reading.half_iqr / reading.value:.1f} %" if reading.value else "–"
    return (
        reading.name,
        _quantity(reading),
        spread if len(reading.samples) > 1 else "–",
        str(len(reading.samples) or 1),
        output.one_line(reading.note or ""),
    )


def _quantity(reading: Reading) -> str:
    match reading.unit:
        case "bytes":
            return format_bytes(reading.value)
        case "bytes_per_s":
            return format_quantity(reading.value, "B/s")
        case "flop_per_s":
            return format_quantity(reading.value, "FLOP/s")
        case "s":
            return format_seconds(reading.value)
        case "celsius":
            return f"{reading.value:.0f} °C"
        case "W":
            return f"{reading.value:.0f} W"
        case _:
            return f"{reading.value:g}"
