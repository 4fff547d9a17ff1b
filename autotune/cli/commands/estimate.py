"""`autotune estimate`: what fits on a device, which need not be here, before anything runs."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autotune.cli import options
from autotune.cli.job import global_batch_size, local_sgd, workload_spec
from autotune.cli.reader import Reader
from autotune.cli.workload_options import DTYPES
from autotune.cost.memory import allocator_settings, devices
from autotune.cost.memory.outside import DRIVER_BYTES, Ranks, Target, target_here
from autotune.display import output
from autotune.errors import ExitCode, UsageError
from autotune.estimating.ask import EstimateRequest, error_of, estimate
from autotune.units import format_bytes, parse_bytes
from autotune.workload.resolve import resolve_model, resolve_spec
from autotune.workload.spec import WorkloadSpec
from probes import store
from probes.devices import nvml
from probes.known import known_machine, refreshed
from probes.machine import Machine
from probes.memory import read_memory
from probes.survey import SurveyProgress

if TYPE_CHECKING:
    from autotune.events import Document

UNNAMED = "a device of that size"
MOST_BYTES = 2**48
"""More is a slip: no device has the hundredth part of it."""


def run(context: typer.Context, chosen: options.Estimate) -> int:
    """Runs the command."""
    reader = Reader(context)
    request = _request(reader, chosen)
    picture = _picture_file(reader, chosen.picture)
    document = estimate(request, fresh=chosen.fresh, on_stage=output.talk)
    if chosen.json:
        # One document in all: should the picture fail, it is that of the error.
        _draw(picture, document)
        output.document(document)
    else:
        _print(document)
        _draw(picture, document)
    error = error_of(document)
    if error is not None:
        output.report(error)
        return error.exit_code
    return ExitCode.OK


def _draw(picture: Path | None, document: Document) -> None:
    if picture is None:
        return
    from autotune.export import memory_picture

    memory_picture.write(picture, document)
    output.talk(f"The picture is in {output.one_line(str(picture))}.")


def _print(document: Document) -> None:
    from autotune.cli import estimate_text

    blocks = estimate_text.blocks(document)
    if output.is_terminal(sys.stdout) and os.environ.get("TERM", "") not in ("", "dumb"):
        from autotune.display.rich import print_report

        print_report(blocks)
    else:
        output.data(estimate_text.plain(blocks))


def _request(reader: Reader, chosen: options.Estimate) -> EstimateRequest:
    processes = reader.at_least("processes", chosen.processes, 1) or 1
    micro_batch_size = reader.at_least("micro_batch_size", chosen.micro_batch_size, 1)
    wanted, _ = global_batch_size(reader, chosen.global_batch_size)
    averaging = local_sgd(reader, chosen.local_sgd)
    dtype = reader.choice("dtype", chosen.dtype, DTYPES)
    spec = replace(workload_spec(reader, chosen, needs_dataset=False), dtype=dtype)
    if wanted is not None and wanted % (processes * (micro_batch_size or 1)):
        parts = f"{processes} processes" if processes > 1 else ""
        parts += " × " if parts and micro_batch_size else ""
        parts += f"micro-batches of {micro_batch_size}" if micro_batch_size else ""
        raise UsageError(
            f"{reader.flag('global_batch_size')} {wanted} cannot be split into {parts}.",
            "Every process accumulates whole micro-batches: change one of the numbers.",
        )
    target = _target(reader, chosen, processes)
    if target.is_cpu and spec.precision == "fp16":
        raise UsageError(
            f"{reader.flag('precision')} fp16 needs a device: on a CPU there is no mixed precision "
            "with it.",
            "Use --precision bf16 or fp32, or name a device with --device.",
        )
    settings = allocator_settings.from_environment(os.environ)
    return EstimateRequest(
        spec=_resolved(spec),
        target=target,
        ranks=Ranks(world_size=processes, averages=processes > 1 and averaging != "off"),
        settings=settings,
        global_batch_size=wanted,
        micro_batch_size=micro_batch_size,
    )


def _resolved(spec: WorkloadSpec) -> WorkloadSpec:
    """The spec with absolute paths; what is wrong with it is found before torch is loaded."""
    if spec.demo:
        return spec
    if spec.dataset is None:
        return resolve_model(spec, Path.cwd())
    with tempfile.TemporaryDirectory(prefix="autotune-estimate-") as scratch:
        return resolve_spec(spec, Path(scratch), Path.cwd())


def _target(reader: Reader, chosen: options.Estimate, processes: int) -> Target:
    given = reader.parsed("device_memory", chosen.device_memory, parse_bytes)
    if given is not None and given > MOST_BYTES:
        raise UsageError(
            f"{reader.flag('device_memory')}: no device has {format_bytes(given)}.",
            "Give what one device has, for example 24GiB.",
        )
    name = (chosen.device or "").strip()
    if not name:
        if given is None:
            return _here(processes)
        return Target(name=UNNAMED, kind="cuda", total_bytes=given, total_from="as given")
    if name.lower() == "cpu":
        if given is None:
            given, total_from = _shared(
                read_memory().available_bytes, "available here now", processes
            )
        else:
            total_from = "as given"
        return Target(name="CPU", kind="cpu", total_bytes=given, total_from=total_from)
    if re.fullmatch(r"(gpu|cuda|hip|xpu|mps)(:\d+)?", name.lower()):
        raise UsageError(
            f"{reader.flag('device')} takes the name of a make, and {name} is none.",
            "Leave it out for the device of this machine, or name one, such as RTX 4090.",
        )
    try:
        known = devices.find(name)
    except UsageError as error:
        raise UsageError(f"{reader.flag('device')}: {error.cause}", error.remedy) from None
    is_sized = given is None
    return Target(
        name=known.name,
        kind="cuda",
        architecture=known.architecture,
        total_bytes=known.total_bytes if given is None else given,
        total_from=f"data sheet, {known.sheet_gib} GB" if is_sized else "as given",
        driver_bytes=DRIVER_BYTES if is_sized and known.vendor == "nvidia" else 0,
        machine=_kept_machine(known),
    )


def _here(processes: int) -> Target:
    """The device that this machine would train on."""
    machine = known_machine(on_progress=_tell)
    total_bytes = machine.device.usable_bytes
    total_from = f"free here now, {machine.device.memory_from}"
    if machine.device.kind == "cpu":
        total_bytes, total_from = _shared(total_bytes, total_from, processes)
    return target_here(machine, total_bytes=total_bytes, total_from=total_from)


def _shared(total_bytes: int, total_from: str, processes: int) -> tuple[int, str]:
    """What each of several processes has of the memory of one machine, and who says so."""
    if processes == 1:
        return total_bytes, total_from
    return total_bytes // processes, f"a share of what is {total_from}"


def _kept_machine(known: devices.KnownDevice) -> Machine | None:
    """This machine, where it has such a device and was probed before."""
    view = nvml.look()
    if not any(_is_one(device.name, known) for device in view.devices):
        return None
    machine = refreshed(view, store.cache_directory(), environment=os.environ)
    return machine if machine is not None and _is_one(machine.device.name, known) else None


def _is_one(name: str, known: devices.KnownDevice) -> bool:
    try:
        return devices.find(name) == known
    except UsageError:
        return False


def _picture_file(reader: Reader, path: str | None) -> Path | None:
    if path is None:
        return None
    file = Path(path).expanduser()
    if file.suffix.lower() != ".svg":
        raise UsageError(
            f"{reader.flag('picture')} draws SVG, and {file.name} is called otherwise.",
            "Give a name that ends in .svg.",
        )
    if not os.path.isdir(file.parent):
        raise UsageError(
            f"{reader.flag('picture')}: the directory {file.parent} does not exist.",
            "Make it, or name another one.",
        )
    if os.path.isdir(file) or not os.access(file if os.path.exists(file) else file.parent, os.W_OK):
        raise UsageError(
            f"{reader.flag('picture')}: {file} cannot be written"
            + (": it is a directory." if os.path.isdir(file) else "."),
            "Name another file.",
        )
    return file


def _tell(progress: SurveyProgress) -> None:
    output.talk(f"Probing {progress.probe} ({progress.number} of {progress.num_probes})")
