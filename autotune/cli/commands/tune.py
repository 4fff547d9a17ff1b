"""`autotune tune`: starts an engine, shows the run, prints the answer."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import typer

from autotune.cli import documents, options, screen, summary
from autotune.cli.declare import Invocation
from autotune.cli.job import build_request
from autotune.cli.nodes import Nodes, across_nodes
from autotune.cli.reader import Reader
from autotune.display import DISPLAYS, output
from autotune.display.base import choose
from autotune.display.watch import Signals, until_it_ends
from autotune.errors import (
    AutotuneError,
    ExitCode,
    NothingFeasible,
    Unconfirmed,
    UsageError,
)
from autotune.run_directory import RunDirectory, is_full
from autotune.view import RunView, without_engine
from probes.ranks.launch import without_launch

DETACH_PATIENCE_S = 30.0
"""How long `--detach` waits for the engine's first word."""
EARLY_GRACE_S = 3.0
"""How long an engine that has not said a word yet may take to end."""
_LOG_LINES = 15
_BY_SIGNAL = (ExitCode.HANGUP, ExitCode.INTERRUPTED, ExitCode.TERMINATED)
_ERRORS = {4: NothingFeasible, 5: Unconfirmed}


def run(context: typer.Context, chosen: options.Tune) -> int:
    """Runs the command, on one machine or on several."""
    return across_nodes(chosen.processes, lambda nodes: _run(context, chosen, nodes))


def _run(context: typer.Context, chosen: options.Tune, nodes: Nodes) -> int:
    request = replace(
        build_request(context, chosen),
        num_nodes=nodes.num,
        meeting=nodes.meeting,
        least_device_bytes=nodes.least_bytes,
    )
    display = choose(Reader(context).choice("display", chosen.display, DISPLAYS))
    if chosen.tui and chosen.detach:
        raise UsageError(
            "--tui shows the run, and --detach does not wait for it.", "Give one of them."
        )
    # Loaded when the request is known to be sound: an error in it should be told at once.
    from autotune import delivery, sound, starting

    sound.check_request(request)
    root = Path(chosen.run_dir).expanduser()
    if request.out is not None:
        own = starting.to_resume(request, root, chosen.name).name if chosen.resume else chosen.name
        delivery.check_out(Path(request.out), run=own, force=request.force)
    with Signals() as signals:
        directory = starting.prepare(
            request,
            root,
            chosen.name,
            fresh=chosen.fresh,
            resume=chosen.resume,
        )
        before = documents.view_of(directory)
        variables = starting.engine_environment(request, without_launch(os.environ))
        engine = starting.start_engine(directory, variables)
        if chosen.detach:
            return _detach(directory, engine, before, signals, chosen)
        if chosen.tui and output.can_take_screen():
            invocation = context.find_object(Invocation)
            return _on_screen(directory, engine, before, signals, chosen, invocation)
        if not chosen.json:
            output.talk(f"Run {directory.name} in {directory.path}")
        view = until_it_ends(directory, engine, signals, display, before)
        return _finish(directory, view, engine, signals, chosen)


def _on_screen(
    directory: RunDirectory,
    engine: subprocess.Popen[bytes],
    before: RunView,
    signals: Signals,
    chosen: options.Tune,
    invocation: Invocation | None,
) -> int:
    """Shows the run in the terminal UI, which may leave while the run goes on."""
    code = screen.show(
        directory,
        owns_run=True,
        look=["--run-dir", str(directory.path.parent)],
        invocation=invocation,
        waiting=signals.take(),
        silent=chosen.json,
    )
    if engine.poll() is None:
        if chosen.json:
            output.document(
                {"schema": documents.SCHEMA}
                | _where(directory, process=engine.pid)
                | {"recommendation": None}
            )
        # The engine outlives this process on purpose; Popen would warn of a child not waited for.
        engine.returncode = 0
    elif chosen.json:
        view = documents.view_of(directory)
        output.document(documents.result(directory, view, _error(directory, view, engine, signals)))
    return code


def _finish(
    directory: RunDirectory,
    view: RunView,
    engine: subprocess.Popen[bytes],
    signals: Signals,
    chosen: options.Tune,
) -> int:
    error = _error(directory, view, engine, signals)
    # A later engine that died early must not be covered by what an earlier one recommended.
    recommended = view.recommendation is not None and (error is None or signals.last is not None)
    if error is not None:
        output.report(error)
    if view.ended is None and signals.last is None:
        for line in _tail(directory.engine_log):
            output.talk(f"  {line}")
    if chosen.json:
        output.document(documents.result(directory, view, error))
    elif recommended:
        output.data(summary.recommendation(directory, view, next_steps=next_steps(directory, view)))
    elif view.trials:
        # Its engine has ended, whatever it was doing.
        view = without_engine(view)
        lines = [*summary.trials(view), *summary.ruled_out(view), *summary.warnings(view)]
        output.data("\n".join(lines).lstrip("\n"))
    ended = view.ended
    if signals.last is not None and (ended is None or ended.exit_code in (0, *_BY_SIGNAL)):
        return 128 + signals.last
    return error.exit_code if error is not None else ExitCode.OK


def _error(
    directory: RunDirectory,
    view: RunView,
    engine: subprocess.Popen[bytes],
    signals: Signals,
) -> AutotuneError | None:
    """What kept the run from ending well, with what to do about it."""
    if engine.returncode == ExitCode.USAGE:
        # Another engine may have taken the run a moment before this one.
        from autotune import starting

        try:
            starting.check_free(directory, own_process=engine.pid)
        except UsageError as taken:
            return taken
    resume = f"`{directory.resume_command}` goes on with every finished trial."
    ended = view.ended
    if signals.last is not None and (ended is None or ended.exit_code in _BY_SIGNAL):
        return AutotuneError(f"Stopped by {signals.last.name}.", resume)
    if ended is None and is_full(directory.path):
        return AutotuneError(
            f"The engine could not go on: the disk that holds {directory.path} is full.",
            f"Make room there; {resume}",
        )
    if ended is None:
        return AutotuneError(
            f"The engine ended without a word ({_how(engine.returncode)}).",
            f"{directory.engine_log} may say why; {resume}",
        )
    if ended.exit_code == ExitCode.OK:
        return None
    kind = _ERRORS.get(ended.exit_code, AutotuneError)
    error = kind(ended.cause or f"The run ended: {ended.reason}.", ended.remedy or resume)
    error.exit_code = _known_code(ended.exit_code)
    return error


def _known_code(code: int) -> ExitCode:
    try:
        return ExitCode(code)
    except ValueError:
        return ExitCode.INTERNAL


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def _tail(path: Path) -> list[str]:
    """The last lines of a log; the log may be large, and hold anything."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 65536))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = [line for line in output.plain_text(text).splitlines() if line.strip()]
    return [output.one_line(line, max_characters=200) for line in lines[-_LOG_LINES:]]


def _detach(
    directory: RunDirectory,
    engine: subprocess.Popen[bytes],
    before: RunView,
    signals: Signals,
    chosen: options.Tune,
) -> int:
    """Waits for the engine's first word, then leaves it alone.

    An interrupt before that ends the engine too, of which nobody would know; a hang-up does not.
    """
    deadline_s = time.monotonic() + DETACH_PATIENCE_S
    view = before
    while time.monotonic() < deadline_s and engine.poll() is None:
        if signals.last in (signal.SIGINT, signal.SIGTERM):
            _end_early(engine)
            break
        view = documents.view_of(directory)
        if view.next_seq > before.next_seq:
            break
        time.sleep(0.1)
    if engine.poll() is not None:
        view = documents.view_of(directory)
        if chosen.json and engine.returncode == ExitCode.OK:
            output.document(
                documents.result(directory, view, None) | _where(directory, process=None)
            )
            return ExitCode.OK
        return _finish(directory, view, engine, signals, chosen)
    follow = summary.command(
        "autotune", "show", directory.name, "--follow", *directory.root_options
    )
    if chosen.json:
        output.document(
            {"schema": documents.SCHEMA}
            | _where(directory, process=engine.pid)
            | {"recommendation": None}
        )
    else:
        output.data(
            f"Run {directory.name} goes on as process {engine.pid}.\n"
            f"  follow  {follow}\n"
            f"  stop    kill {engine.pid}"
        )
    # The engine outlives this process on purpose; Popen would warn of a child not waited for.
    engine.returncode = 0
    return ExitCode.OK


def _end_early(engine: subprocess.Popen[bytes]) -> None:
    """Ends an engine that has hardly begun."""
    engine.terminate()
    try:
        engine.wait(EARLY_GRACE_S)
    except subprocess.TimeoutExpired:
        engine.kill()
        engine.wait()


def _where(directory: RunDirectory, process: int | None) -> dict[str, object]:
    """Where a run is that was left alone, and the engine that goes on with it, if one does."""
    return {"run": directory.name, "path": str(directory.path), "process": process}


def next_steps(directory: RunDirectory, view: RunView) -> list[str]:
    """Commands that make sense after a recommendation."""
    steps = []
    exported = {str(file.get("name")) for file in view.exported.files} if view.exported else set()
    if view.exported is not None and "trainer.py" in exported:
        steps += _training(directory, view, str(Path(view.exported.directory) / "trainer.py"))
    return [
        *steps,
        summary.command("autotune", "verify", directory.name, *directory.root_options),
    ]


def _training(directory: RunDirectory, view: RunView, script: str) -> list[str]:
    """The commands that train: one, or one a node."""
    answer = (view.recommendation or {}).get("recommendation")
    configuration = answer.get("configuration") if isinstance(answer, dict) else None
    if not isinstance(configuration, dict) or configuration.get("world_size", 1) == 1:
        return [summary.command("python", script)]
    from autotune import delivery
    from autotune.export import launch

    return list(launch.commands(delivery.bundle_of(directory), script))
