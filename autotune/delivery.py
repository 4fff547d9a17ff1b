"""The files of a finished run: gathers what they are made of, and has them written."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from pydantic import JsonValue, TypeAdapter, ValidationError

from autotune import request as requests
from autotune.advice.document import kinds, launch_environment
from autotune.configuration import Configuration
from autotune.errors import (
    JournalError,
    UsageError,
)
from autotune.events import (
    Document,
    FilesExported,
)
from autotune.export import document
from autotune.export.bundle import Bundle
from autotune.export.write import FILE_NAMES, ExportedFile, write
from autotune.folding import view_of
from autotune.run_directory import RunDirectory
from autotune.search.session import Session
from autotune.view import RunView
from autotune.workload.facts import WorkloadFacts
from autotune.workload.spec import WorkloadSpec
from probes.ranks.meeting import split


def check_out(out: Path, *, run: str | None, force: bool) -> None:
    """Looks at the place for the files before anything is measured, not after.

    Args:
        out: Where the files will go.
        run: The name of the run, if it has one yet; its own files may be replaced.
        force: Files of any run may be replaced.

    Raises:
        UsageError: It cannot be written, or holds such files of somebody else.
    """
    try:
        existing = next(path for path in (out, *out.absolute().parents) if path.exists())
    except OSError as error:
        raise UsageError(
            f"The output directory {out} cannot be made: {error.strerror}.",
            "Choose another place with --out.",
        ) from error
    if not os.path.isdir(existing):
        raise UsageError(
            f"The output directory {out} cannot be made: {existing} is a file.",
            "Choose another place with --out.",
        )
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise UsageError(
            f"The output directory {out} cannot be written: {error.strerror}.",
            "Choose another place with --out.",
        ) from error
    if force:
        return
    try:
        found = json.loads((out / "recommendation.json").read_bytes()).get("run")
    except (OSError, ValueError, AttributeError):
        found = None
    if found is not None and found == run:
        return
    names = [name for name in FILE_NAMES if os.path.exists(out / name)]
    if names:
        whose = f"of run {found!r}" if found is not None else "that autotune did not write"
        raise UsageError(
            f"The output directory {out} holds files {whose}: {', '.join(names)}.",
            "Choose another place with --out, or replace them with --force.",
        )


def check_alternative(run: RunDirectory, alternative: str | None) -> RunView:
    """The run, once it is known to have what is to be exported.

    Raises:
        UsageError: The run has no recommendation, or no such alternative.
    """
    view = view_of(run)
    if view.recommendation is None:
        raise UsageError(
            f"The run {run.name!r} has no recommendation yet.",
            f"Let it end, or go on with it: `{run.resume_command}`, or the same call of tune().",
        )
    _chosen(view.recommendation, alternative)
    return view


def bundle_of(run: RunDirectory, alternative: str | None = None) -> Bundle:
    """What the files of a finished run are made of.

    Args:
        run: A run with a recommendation.
        alternative: The kind of alternative to take instead of the recommendation.

    Raises:
        UsageError: The run has no recommendation, or no such alternative.
        JournalError: Its journal is damaged, or of another version.
    """
    view = check_alternative(run, alternative)
    try:
        return _bundle(run, view, alternative)
    except ValueError as error:
        raise JournalError(
            f"The journal of run {run.name!r} is damaged, or of another version of autotune: "
            f"{_first_fault(error)}.",
            "Start a new run; `autotune show` tells what can be read of this one.",
        ) from error


def _first_fault(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error).rstrip(".")
    fault = error.errors()[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"


def _bundle(run: RunDirectory, view: RunView, alternative: str | None) -> Bundle:
    assert view.recommendation is not None
    document.read(view.recommendation)
    if view.workload is None or view.space is None:
        raise JournalError(
            f"The journal of run {run.name!r} lacks its beginning.", "Start a new run."
        )
    request = requests.load(run)
    facts = TypeAdapter(WorkloadFacts).validate_python(view.workload.facts)
    configuration = _chosen(view.recommendation, alternative)
    has_nodes = request.num_nodes > 1 and configuration.world_size > 1
    return Bundle(
        run=run.name,
        configuration=configuration,
        baseline=Configuration.from_json(view.space.baseline),
        document=view.recommendation,
        workload=facts.chosen
        or (request.workload if isinstance(request.workload, WorkloadSpec) else None),
        facts=facts,
        environment={
            name: str(value)
            for name, value in launch_environment(view, configuration, request).items()
        },
        repair_loss=view.parity is not None and view.parity.repaired,
        has_unused_parameters=view.parity is not None and bool(view.parity.unused_parameters),
        trials=view.trials,
        total_steps=request.total_steps,
        driver=request.driver,
        device_type=view.workload.device,
        num_nodes=request.num_nodes if has_nodes else 1,
        address=split(request.meeting)[0] if has_nodes and request.meeting else None,
        interfaces=_interfaces(view, request) if has_nodes else (),
    )


def _interfaces(view: RunView, request: requests.Request) -> tuple[str, ...]:
    """The network interface of each node, where the trials were told to use one."""
    num_ranks = request.processes
    for trial in view.trials:
        exchange = trial.measured.exchange if trial.measured is not None else None
        if exchange is not None and len(exchange.interfaces) == num_ranks:
            return exchange.interfaces[:: num_ranks // request.num_nodes]
    return ()


def _chosen(answered: Document, alternative: str | None) -> Configuration:
    answer = answered.get("recommendation")
    if not isinstance(answer, dict):
        raise UsageError("The run has no recommendation.", "Go on with it by --resume.")
    if alternative is None:
        return _configuration(answer.get("configuration"))
    offered = answer.get("alternatives")
    for item in offered if isinstance(offered, list) else []:
        if isinstance(item, dict) and item.get("kind") == alternative:
            return _configuration(item.get("configuration"))
    # As they are typed without quotes.
    known = ", ".join(kind.replace(" ", "-") for kind in kinds(answered))
    raise UsageError(
        f"There is no alternative {alternative.replace(' ', '-')!r} in this run.",
        f"It offers {known}."
        if known
        else "It offers none: no other configuration that was measured is nearly as fast.",
    )


def _configuration(value: JsonValue) -> Configuration:
    try:
        return Configuration.from_json(value if isinstance(value, dict) else {})
    except ValueError as error:
        raise JournalError("The run's recommendation is damaged.", "Start a new run.") from error


def export_run(
    run: RunDirectory,
    directory: Path,
    *,
    alternative: str | None = None,
    force: bool = False,
    session: Session | None = None,
) -> tuple[ExportedFile, ...]:
    """Writes every file of a finished run, each read back by its consumer.

    Raises:
        UsageError: There is nothing to export.
        ExportError: A file cannot be written, or its consumer refuses it.
    """
    files = write(
        bundle_of(run, alternative),
        directory,
        force=force,
        log=run.path / "export.log",
        should_stop=session.why_end_now if session is not None else lambda: None,
    )
    if session is not None:
        session.emit(
            FilesExported(
                directory=str(directory.absolute()),
                files=tuple(TypeAdapter(ExportedFile).dump_python(f, mode="json") for f in files),
            )
        )
    return files
