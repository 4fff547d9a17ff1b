"""`autotune export`: the files of a recommendation, or of one of its alternatives."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from autotune.cli import documents, options, summary
from autotune.display import output
from autotune.errors import ExitCode
from autotune.run_directory import find


def run(context: typer.Context, chosen: options.Export) -> int:
    """Runs the command."""
    from autotune import delivery

    directory = find(Path(chosen.run_dir).expanduser(), chosen.run)
    out = Path(chosen.out).expanduser() if chosen.out else directory.out
    # A kind is typed without quotes more easily.
    alternative = chosen.alternative.replace("-", " ") if chosen.alternative else None
    delivery.check_alternative(directory, alternative)
    delivery.check_out(out, run=directory.name, force=chosen.force)
    output.talk("Writing the files and reading each back through its consumer …")
    files = delivery.export_run(
        directory,
        out,
        alternative=alternative,
        force=chosen.force,
    )
    if chosen.json:
        output.document(
            {
                "schema": documents.SCHEMA,
                "run": directory.name,
                "directory": str(out.absolute()),
                "files": [asdict(file) for file in files],
            }
        )
    else:
        rows = [(file.name, f"read by {file.consumer}") for file in files]
        lines = [f"Files in {out}", *summary.indented(summary.table([], rows))]
        output.data("\n".join(lines))
    return ExitCode.OK
