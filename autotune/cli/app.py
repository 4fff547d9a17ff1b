"""The tree of commands, and the one place where errors become words and exit codes.

Every body imports what it needs when it runs: `--help`, `runs` and `show` load no training library.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from autotune.cli import options, settings
from autotune.cli.ahead import Ahead
from autotune.cli.declare import Invocation, origin, takes, variable
from autotune.cli.declare import settings as declared_settings
from autotune.cli.endings import EndedBySignal, signals_raise
from autotune.display import output
from autotune.errors import AutotuneError, ExitCode, UsageError

_EPILOG = (
    "Settings also come from autotune.toml or \\[tool.autotune] in pyproject.toml, the nearest "
    "one upwards, and from variables such as AUTOTUNE_MEMORY_LIMIT; flags win over variables, "
    "variables over files. "
    "Exit codes: 0 ok, 1 internal or verify or trial differs, 2 usage, 3 device or probe "
    "unavailable, 4 nothing feasible, 5 budget ended before confirmation, 130/143/129 by signal."
)

_OF_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES)
"""What the system says of a path that can be none, or none of this user's."""
_NUMBERS = {int: ("a whole number", "8"), float: ("a number", "0.1")}
_YES = ("1", "true", "t", "yes", "y", "on")
"""What switches an option on in a variable."""

app = typer.Typer(
    name="autotune",
    help="Finds the fastest training configuration that fits your machine "
    "and keeps the learning the same.",
    epilog=_EPILOG,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None, *, ahead: Ahead | None = None) -> int:
    """Runs one command and returns its exit code; errors are reported, never raised.

    Args:
        arguments: Words of the command line; by default those of the process.
        ahead: A terminal UI that is loading meanwhile.
    """
    output.prepare_streams()
    words = tuple(sys.argv[1:] if arguments is None else arguments)
    # Whatever keeps the options from being read must not keep an error from being a document.
    wants_json = "--json" in words or os.environ.get(variable("--json"), "").lower() in _YES
    invocation = Invocation(arguments=words, wants_json=wants_json, ahead=ahead)
    try:
        with signals_raise():
            result = typer.main.get_command(app).main(
                list(words), prog_name="autotune", standalone_mode=False, obj=invocation
            )
        code = int(result or 0)
    except AutotuneError as error:
        code = _fail(error, invocation)
    except (typer.Abort, KeyboardInterrupt):
        code = _ended(EndedBySignal(signal.SIGINT), invocation)
    except EndedBySignal as end:
        code = _ended(end, invocation)
    except Exception as error:  # noqa: BLE001 - the last resort: no traceback without being asked
        if hasattr(error, "format_message"):
            code = _fail(usage_error(error), invocation)
        elif isinstance(error, OSError) and error.errno in _OF_PATHS and error.filename:
            cause = f"{error.filename} cannot be used: {error.strerror}."
            code = _fail(UsageError(cause, "Name another path."), invocation)
        else:
            code = _fail(
                AutotuneError(
                    f"Something went wrong inside autotune: {type(error).__name__}: {error}",
                    "Please report it with what `autotune doctor` prints; "
                    "AUTOTUNE_DEBUG=1 shows where it happened.",
                ),
                invocation,
            )
    output.flush()
    return int(code)


def _fail(error: AutotuneError, invocation: Invocation) -> ExitCode:
    if os.environ.get("AUTOTUNE_DEBUG"):
        traceback.print_exc()
    output.report(error)
    _document(error, invocation)
    return error.exit_code


def _ended(end: EndedBySignal, invocation: Invocation) -> int:
    output.talk(end.cause)
    _document(AutotuneError(end.cause), invocation)
    return 128 + end.number


def _document(error: AutotuneError, invocation: Invocation) -> None:
    """Prints the error as the one document, where one is wanted."""
    if not invocation.wants_json:
        return
    document: dict[str, object] = {"schema": 1}
    if invocation.arguments[:1] == ("tune",):
        document |= {"run": None, "recommendation": None}
    # Where stdout takes nothing, it has been told on stderr.
    with contextlib.suppress(AutotuneError):
        output.document(document | {"error": {"cause": error.cause, "remedy": error.remedy}})


def usage_error(error: Exception, shown: str | None = None) -> UsageError:
    """Turns what the parser of the command line raises into an error of ours.

    Args:
        error: What it raised.
        shown: The command that the reader knows, where another one parses in its place.
    """
    cause = str(error.format_message()).strip()  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    parameter = getattr(error, "param", None)
    command = shown or (context.command_path if context is not None else "autotune")
    remedy = f"`{command} --help` lists what there is."
    near = [str(name) for name in getattr(error, "possibilities", None) or ()]
    if type(error).__name__ == "NoSuchOption":
        cause = f"There is no option {getattr(error, 'option_name', '')}."
    elif match := re.match(r"No such command ['\"]?([^'\"]*)", cause):
        near = near or re.findall(r"'([^']*)'", cause[match.end() + 1 :])
        cause = f"There is no command {match[1]}."
    elif parameter is not None and context is not None and parameter.param_type_name == "option":
        flag = parameter.opts[0] + origin(context, parameter.name)
        setting = declared_settings(options.ALL).get(parameter.opts[0].removeprefix("--"))
        needed = _NUMBERS.get(setting.type) if setting else None
        if needed is None:
            cause = f"{cause} ({flag})"
        else:
            what, example = needed
            value = _value(error)
            cause = f"{flag} takes {what}{f', not {value!r}' if value else ''}."
            remedy = f"Write one such as {example}."
    if near:
        remedy = f"Did you mean {' or '.join(near)}?"
    return UsageError(cause, remedy)


def _value(error: Exception) -> str:
    """What was no number; empty where the parser does not tell.

    Some versions of it tell in words, others in the error of what they validate with.
    """
    told = re.search(r"'(.*)' is not a valid", str(error.format_message()), re.DOTALL)  # type: ignore[attr-defined]
    if told is not None:
        return told[1]
    from pydantic import ValidationError

    validation = error.__cause__
    if not isinstance(validation, ValidationError):
        return ""
    return str(validation.errors()[0]["input"])


def _version(value: bool) -> None:
    if value:
        from autotune import __version__

        output.data(f"autotune {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Checks the installation and reads the settings before any command runs."""
    if context.invoked_subcommand is None:
        output.data(context.get_help())
        return
    invocation = context.find_object(Invocation)
    wants_help = invocation is not None and {"-h", "--help"} & {*invocation.arguments}
    if wants_help or context.invoked_subcommand == "doctor":
        # Both must work where the installation or a file is broken.
        return
    from autotune.cli.startup import check_installation

    check_installation()
    path = settings.find_here()
    if path is not None and invocation is not None:
        found = settings.load(path, declared_settings(options.ALL))
        by_parameter = {name.replace("-", "_"): value for name, value in found.values.items()}
        invocation.settings_file = path
        invocation.wants_json |= found.values.get("json") is True
        invocation.keys = found.keys
        context.default_map = {
            str(command.name): by_parameter for command in app.registered_commands
        }


@app.command("tune")
@takes(options.Tune)
def tune(context: typer.Context, chosen: options.Tune) -> int:
    """Find the fastest configuration for a job, prove it, and export it."""
    if chosen.dry_run:
        from autotune.cli.commands import plan as plan_command

        return plan_command.run(context, chosen)
    from autotune.cli.commands import tune as tune_command

    return tune_command.run(context, chosen)


@app.command("plan")
@takes(options.Plan)
def plan(context: typer.Context, chosen: options.Plan) -> int:
    """Show what would be tried, what is ruled out and why. Takes what tune takes."""
    from autotune.cli.commands import plan as command

    return command.run(context, chosen)


@app.command("estimate")
@takes(options.Estimate)
def estimate(context: typer.Context, chosen: options.Estimate) -> int:
    """Show what fits on a device, here or not, before anything runs."""
    from autotune.cli.commands import estimate as command

    return command.run(context, chosen)


@app.command("probe")
@takes(options.Probe)
def probe(context: typer.Context, chosen: options.Probe) -> int:
    """Measure this machine: memory, bandwidth, arithmetic."""
    from autotune.cli.commands import probe as command

    return command.run(context, chosen)


@app.command("runs")
@takes(options.ListRuns)
def runs(context: typer.Context, chosen: options.ListRuns) -> int:
    """List the runs with their state and their best configuration."""
    from autotune.cli.commands import runs as command

    return command.run(context, chosen)


@app.command("show")
@takes(options.Show)
def show(context: typer.Context, chosen: options.Show) -> int:
    """Show a run: its recommendation, its trials and the reasons."""
    from autotune.cli.commands import show as command

    return command.run(context, chosen)


@app.command("export")
@takes(options.Export)
def export(context: typer.Context, chosen: options.Export) -> int:
    """Write the files of a run's recommendation, each checked by its consumer."""
    from autotune.cli.commands import export as command

    return command.run(context, chosen)


@app.command("verify")
@takes(options.Verify)
def verify(context: typer.Context, chosen: options.Verify) -> int:
    """Check the exported files of a run again, and train a few steps as exported."""
    from autotune.cli.commands import verify as command

    return command.run(context, chosen)


@app.command("trial")
@takes(options.Trial)
def trial(context: typer.Context, chosen: options.Trial) -> int:
    """Run one trial of a run again, alone."""
    from autotune.cli.commands import trial as command

    return command.run(context, chosen)


@app.command("tui")
@takes(options.Tui)
def tui(context: typer.Context, chosen: options.Tui) -> int:
    """Set up a job, watch a run live, or look back at one, on the whole screen."""
    from autotune.cli.commands import tui as command

    return command.run(context, chosen)


@app.command("doctor")
@takes(options.Doctor)
def doctor(context: typer.Context, chosen: options.Doctor) -> int:
    """Print what a bug report needs: versions, devices, limits, variables."""
    from autotune.cli.commands import doctor as command

    return command.run(context, chosen)
