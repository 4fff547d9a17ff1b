"""Signals and endings in real processes: the command line over an engine that measures nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from autotune import control, journal, lease
from autotune.cli import documents
from autotune.display.none import NoDisplay
from autotune.display.quiet import is_quiet
from autotune.display.watch import _Stopper
from autotune.events import Event, TrialProgressed, TrialStarted
from autotune.folding import fold
from autotune.run_directory import RunDirectory
from tests.testing import runs

PATH = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the command line in a directory of its own; ends whatever it left behind."""
    started: list[subprocess.Popen[str]] = []

    def start(story: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        environment = os.environ | {"AUTOTUNE_TEST_STORY": story, "PYTHONPATH": PATH}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.testing.fake_cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment | variables,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    for run in (tmp_path / "autotune-runs").glob("*"):
        held = lease.read(RunDirectory(run).lease)
        if held is not None and held.is_alive:
            os.kill(held.process, signal.SIGKILL)


def _run(directory: Path) -> RunDirectory:
    (run,) = (directory / "autotune-runs").iterdir()
    return RunDirectory(run)


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def _wait_for_trial(directory: Path, number: int = 0) -> RunDirectory:
    def has_started() -> bool:
        runs_found = [*(directory / "autotune-runs").glob("*")]
        if not runs_found:
            return False
        records = journal.read(RunDirectory(runs_found[0]).journal)
        return any(isinstance(r.event, TrialStarted) and r.event.number == number for r in records)

    _wait_for(has_started, "the trial never started")
    return _run(directory)


def test_the_first_interrupt_lets_the_trial_finish(start: Start, tmp_path: Path) -> None:
    process = start("slow", "tune", "--demo", "--name", "one")
    run = _wait_for_trial(tmp_path)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopping after this trial (in a confirmation, after this measurement)" in err
    assert "finished trials are kept. Ctrl-C again stops now." in err
    assert "autotune tune --resume --name one" in err
    view = fold(journal.read(run.journal))
    assert [trial.state for trial in view.trials] == ["measured"]
    assert lease.read(run.lease) is None
    assert "✓ baseline" in out


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ((signal.SIGINT, signal.SIGINT), 130),
        ((signal.SIGTERM,), 143),
        ((signal.SIGHUP,), 129),
    ],
    ids=["two interrupts", "terminate", "hang-up"],
)
def test_other_signals_stop_now_and_everything_is_saved(
    start: Start, tmp_path: Path, signals: tuple[signal.Signals, ...], code: int
) -> None:
    process = start("slow", "tune", "--demo", "--name", "one", "--json")
    run = _wait_for_trial(tmp_path, number=1)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.2)  # Signals of one kind merge while one is waiting.
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Stopping now, finished trials are kept." in err
    view = fold(journal.read(run.journal))
    assert [trial.state for trial in view.trials] == ["measured", "stopped"]
    document = json.loads(out)
    assert document["recommendation"] is None
    assert document["error"]["cause"] == f"Stopped by {signals[-1].name}."
    assert lease.read(run.lease) is None


def test_an_engine_that_hears_nothing_is_ended_in_the_end(start: Start, tmp_path: Path) -> None:
    process = start(
        "deaf", "tune", "--demo", AUTOTUNE_TEST_GRACE_S="0.2", AUTOTUNE_TEST_LAST_GRACE_S="0.2"
    )
    run = _wait_for_trial(tmp_path)
    held = lease.read(run.lease)
    assert held is not None
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "The engine is being ended." in err
    assert not held.is_alive


def test_a_command_line_that_is_killed_leaves_the_engine_running(
    start: Start, tmp_path: Path
) -> None:
    process = start("slow", "tune", "--demo", "--name", "one")
    run = _wait_for_trial(tmp_path)
    process.kill()
    process.wait()
    held = lease.read(run.lease)
    assert held is not None
    assert held.is_alive
    assert documents.state(run, fold(journal.read(run.journal))) == "running"
    control.send(run.control, "stop_now", "SIGTERM")
    _wait_for(lambda: not psutil.pid_exists(held.process), "the engine did not stop")
    assert documents.state(run, fold(journal.read(run.journal))) == "stopped"


def test_detach_says_how_to_follow_and_follow_can_be_left(start: Start, tmp_path: Path) -> None:
    process = start("slow", "tune", "--demo", "--name", "one", "--detach")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    match = re.fullmatch(
        r"Run one goes on as process (\d+)\.\n"
        r"  follow  autotune show one --follow\n"
        r"  stop    kill \1\n",
        out,
    )
    assert match
    run = _wait_for_trial(tmp_path)
    held = lease.read(run.lease)
    assert held is not None
    assert held.process == int(match[1])

    follower = start("", "show", "one", "--follow")
    assert follower.stderr is not None
    assert "trial" in follower.stderr.readline()
    follower.send_signal(signal.SIGINT)
    assert "Run one goes on." in follower.communicate(timeout=60)[1]
    assert follower.returncode == 130
    assert held.is_alive

    follower = start("", "show", "one", "--follow")
    assert follower.stderr is not None
    follower.stderr.readline()
    control.send(run.control, "stop_now", "SIGINT")
    out, err = follower.communicate(timeout=60)
    assert follower.returncode == 0
    assert "run ended: stopped" in err
    assert "state    stopped" in out


def test_a_reader_that_went_away_does_not_stop_the_run(start: Start, tmp_path: Path) -> None:
    process = start("good", "tune", "--demo", "--name", "one")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    process.stdout = process.stderr = None
    process.wait(timeout=60)
    assert process.returncode == 0
    view = fold(journal.read(_run(tmp_path).journal))
    assert view.ended is not None
    assert view.ended.exit_code == 0


def _progressed(stage: str) -> list[Event]:
    start = runs.trial(0, runs.BASELINE, runs.measured(1.0))[0]
    return [*runs.opening("one"), start, TrialProgressed(number=0, stage=stage)]


def test_nothing_is_drawn_while_speed_is_measured_on_the_processor_that_draws() -> None:
    assert is_quiet(fold(runs.records(_progressed("speed"))))
    assert not is_quiet(fold(runs.records(_progressed("memory"))))
    assert not is_quiet(fold(runs.records(runs.searching("one"))))
    confirming = runs.trial(9, runs.BEST, runs.measured(1.0), "confirm")[0]
    assert is_quiet(fold(runs.records([*runs.searching("one"), confirming])))


def test_on_a_device_the_panel_goes_on_while_speed_is_measured() -> None:
    view = fold(runs.records(_progressed("speed")))
    assert view.machine is not None
    devices = view.machine.machine["devices"]
    assert isinstance(devices, list)
    assert isinstance(devices[0], dict)
    devices[0]["kind"] = "cuda"
    assert not is_quiet(view)


def test_a_run_directory_that_is_gone_stays_gone_and_its_engine_is_ended(
    start: Start, tmp_path: Path
) -> None:
    process = start("slow", "tune", "--demo", "--name", "one")
    run = _wait_for_trial(tmp_path)
    held = lease.read(run.lease)
    assert held is not None
    run.path.rename(tmp_path / "moved")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The engine is being ended." in err
    assert not held.is_alive
    assert not run.path.exists()


def test_an_engine_that_cannot_be_asked_is_signalled(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    # As on a full disk, nothing can be written where requests go.
    run.control.touch()
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        _Stopper(run, engine, NoDisplay()).handle([signal.SIGTERM])
        assert engine.wait(timeout=30) == -signal.SIGTERM
    finally:
        engine.kill()
        engine.wait()
