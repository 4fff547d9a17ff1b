"""`autotune probe`: the machine in figures, and the link between ranks where there are several."""

from __future__ import annotations

from dataclasses import replace

import typer

from autotune.cli import documents, links, options, summary
from autotune.cli.nodes import in_our_words
from autotune.cli.reader import Reader
from autotune.display import output, quantities
from autotune.errors import DeviceError, ExitCode, UsageError
from autotune.units import format_bytes
from probes.collectives.probe import measure
from probes.known import known_machine
from probes.machine import Finding, Machine, Reading, machine_adapter
from probes.memory import read_num_cores
from probes.ranks import agents
from probes.ranks.launch import Ranks
from probes.ranks.nodes import compare, node_of_this_process
from probes.ranks.room import check_room
from probes.survey import SurveyProgress


def run(context: typer.Context, chosen: options.Probe) -> int:
    """Runs the command."""
    reader = Reader(context)
    processes = reader.at_least("processes", chosen.processes, 1) or 1
    with in_our_words():
        node = node_of_this_process()
        if node is not None and node.rank > 0:
            return agents.serve(node, on_word=output.talk)
        if node is None:
            check_room(processes, read_num_cores())
            return _show(_probed(chosen, Ranks(num_processes=processes)), as_json=chosen.json)
        with agents.host_meeting(node) as meeting, in_our_words():
            if processes > 1 and processes % node.num_nodes:
                raise UsageError(
                    f"{reader.flag('processes')} {processes} do not spread evenly over "
                    f"{node.num_nodes} nodes.",
                    f"Take a multiple of {node.num_nodes}, or 1.",
                )
            ranks = Ranks(
                num_processes=processes,
                num_nodes=node.num_nodes if processes > 1 else 1,
                meeting=meeting.address,
            )
            findings = compare(meeting.gather(), ranks.num_local) if processes > 1 else ()
            machine = _probed(chosen, ranks)
            machine = replace(machine, findings=(*machine.findings, *findings))
            code = _show(machine, as_json=chosen.json)
            meeting.dismiss(code)
            return code


def _probed(chosen: options.Probe, ranks: Ranks) -> Machine:
    """This machine, with the link between ranks where there are several."""
    machine = known_machine(fresh=chosen.fresh, on_progress=_tell)
    if ranks.num_processes == 1:
        return machine
    return replace(machine, links=(measure(ranks, machine, on_step=_Teller()),))


def _show(machine: Machine, *, as_json: bool) -> int:
    if as_json:
        output.document(
            {
                "schema": documents.SCHEMA,
                "machine": machine_adapter().dump_python(machine, mode="json"),
            }
        )
    else:
        output.data(_text(machine))
    has_speeds = bool(machine.readings) and all(link.sizes() for link in machine.links)
    if not has_speeds:
        found = [*(f for link in machine.links for f in link.findings), *machine.findings]
        trouble = next((finding for finding in found if finding.is_problem), None)
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


class _Teller:
    """Tells what is measured between ranks, all sizes of it at once."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, step: str) -> None:
        what = step.split()[0]
        if what != self._last:
            self._last = what
            output.talk(f"Probing {what} between ranks")


def _text(machine: Machine) -> str:
    host = machine.host
    rows = [
        ("host", f"{output.one_line(host.processor)}, {host.num_cores:g} cores"),
        (
            "memory",
            f"{format_bytes(host.available_bytes)} available of {format_bytes(host.total_bytes)} "
            f"({host.limit_from})",
        ),
        *((f"{d.kind}:{d.index}", quantities.device(d)) for d in machine.devices),
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
    for link in machine.links:
        lines += ["", *links.text(link)]
    every = (*machine.findings, *(finding for link in machine.links for finding in link.findings))
    return "\n".join([*lines, *findings(every)])


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
    return (
        reading.name,
        quantities.quantity(reading),
        quantities.spread(reading),
        str(len(reading.samples) or 1),
        output.one_line(reading.note or ""),
    )
