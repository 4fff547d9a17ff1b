"""What a job looks like before torch is loaded: for a form that asks while somebody fills it in.

`python -m autotune.cli.look OPTIONS` takes the options of `autotune plan`, settings and variables
included, and prints one JSON document: what the job's files tell at once, and everything that is
wrong; `error` is the first of `errors`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import typer

from autotune.cli import app, documents, faults, options
from autotune.cli.declare import takes
from autotune.cli.task import architecture_of
from autotune.display import output
from autotune.errors import AutotuneError, ExitCode
from autotune.events import Document
from autotune.request import Request
from autotune.workload.columns import check_named, choose
from autotune.workload.header import header_of
from autotune.workload.resolve import resolve_data, resolve_spec
from autotune.workload.spec import WorkloadSpec

COMMAND = "plan"
"""The command whose options are looked at."""
SHOWN = "autotune tune"
"""The command that the form shows, and that a hint may name."""


def main() -> int:
    """Answers for the options in `sys.argv`."""
    words, unread = faults.of_words(COMMAND, sys.argv[1:], shown=SHOWN)

    @takes(options.Plan, checks_places=False)
    def look(context: typer.Context, chosen: options.Plan) -> int:
        """Show what the files of a job tell at once."""
        return _look(context, chosen, unread)

    commands = app.app.registered_commands
    commands[:] = [command for command in commands if command.name != COMMAND]
    app.app.command(COMMAND)(look)
    return app.main([COMMAND, *words, "--json"])


def _look(context: typer.Context, chosen: options.Plan, unread: Sequence[AutotuneError]) -> int:
    rest, misplaced = faults.of_places(context, chosen)
    document: dict[str, object] = {
        "schema": documents.SCHEMA,
        "columns": _columns(rest),
        "architecture": architecture_of(rest.model or rest.model_config or "") or None,
    }
    wrong, told = faults.of_options(context, rest, misplaced, _job)
    found = [*wrong, *unread]
    document |= told
    if found:
        errors = [{"cause": error.cause, "remedy": error.remedy} for error in found]
        document |= {"error": errors[0], "errors": errors}
    output.document(document)
    return found[0].exit_code if found else ExitCode.OK


def _columns(chosen: options.Plan) -> list[str] | None:
    """Column names of the data, known even where something else is wrong with the job."""
    if not chosen.dataset or chosen.demo:
        return None
    place = str(Path(chosen.dataset).expanduser().absolute())
    spec = WorkloadSpec(task="causal-lm", dataset=place)
    return header_of(replace(spec, split=chosen.split or spec.split))


def _job(request: Request, known: faults.Known) -> Document:
    """Task and columns of a job whose data are there; nothing where its task is not known.

    Raises:
        AutotuneError: Files are not there, or do not fit.
    """
    spec = request.spec
    if spec.demo:
        return {"task": spec.task, "chosen": {}}
    place = Path(request.working_directory)
    if known.model and known.task:
        with tempfile.TemporaryDirectory(prefix="autotune-look-") as scratch:
            spec = resolve_spec(spec, Path(scratch), place)
    else:
        spec = resolve_data(spec, place)
    columns = header_of(spec)
    if not known.task:
        if columns is not None:
            check_named(spec.columns, columns)
        return {}
    found = choose(spec.columns, spec.task, columns) if columns is not None else spec.columns
    return {
        "task": spec.task,
        "chosen": {name: value for name, value in asdict(found).items() if value is not None},
    }


if __name__ == "__main__":
    sys.exit(main())
