"""The engine's side of a worker, against workers that misbehave."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from autotune.configuration import Configuration
from autotune.errors import ERRORS_BY_NAME, AutotuneError, WorkloadError
from autotune.outcome import Failed, OutOfMemory, Stopped, TimedOut
from autotune.trial.client import Worker, WorkerDiedError
from autotune.trial.protocol import MeasureMemory, MemoryMeasured, Progress, Ready
from autotune.workload.spec import WorkloadSpec
from probes.kills import KillWatch, MemorySign
from tests.autotune.trial import processes

COMMAND = MeasureMemory(
    configuration=Configuration(micro_batch_size=1, accumulation_steps=1), limit_bytes=1
)
Start = Callable[[str], Worker]
LIMIT_S = 60.0


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    started: list[Worker] = []

    def make(scenario: str) -> Worker:
        environment = processes.fake(monkeypatch, tmp_path, scenario)
        options = processes.options(WorkloadSpec(task="causal-lm"), tmp_path)
        started.append(Worker(options, environment, tmp_path / "worker.log"))
        return started[-1]

    yield make
    for worker in started:
        worker.close()
        assert not worker.is_alive


def ready(start: Start, scenario: str) -> Worker:
    worker = start(scenario)
    assert isinstance(worker.wait_ready(time_limit_s=LIMIT_S), Ready)
    return worker


def test_a_ready_worker_answers_one_command_after_another(start: Start, tmp_path: Path) -> None:
    worker = ready(start, "answers")
    assert worker.ready is not None
    assert (worker.ready.facts.name, worker.ready.level_bytes) == ("fake", 1000)
    used_before = worker.is_used
    for number in (1, 2, 3):
        reply = worker.ask(COMMAND, log=tmp_path / "log", time_limit_s=LIMIT_S)
        assert isinstance(reply, MemoryMeasured)
        assert reply.memory.total_bytes == number
    assert (used_before, worker.is_used) == (False, True)
    assert worker.is_alive


def test_noise_and_broken_lines_do_not_disturb_the_channel(start: Start, tmp_path: Path) -> None:
    worker = ready(start, "chatters")
    told: list[Progress] = []
    reply = worker.ask(COMMAND, log=tmp_path / "log", time_limit_s=LIMIT_S, on_progress=told.append)
    assert isinstance(reply, MemoryMeasured)
    assert [(p.stage, p.step) for p in told] == [
        ("speed", 0),
        ("speed", 1),
        ("speed", 2),
        ("last", None),
    ]
    assert '"cause": "noise"' in (tmp_path / "worker.log").read_text()


def test_a_second_answer_is_not_taken_for_that_of_the_next_command(
    start: Start, tmp_path: Path
) -> None:
    worker = ready(start, "answers twice")
    for number in (1, 2, 3):
        reply = worker.ask(COMMAND, log=tmp_path / "log", time_limit_s=LIMIT_S)
        assert isinstance(reply, MemoryMeasured)
        assert reply.memory.total_bytes == number


@pytest.mark.parametrize("name", ["UsageError", "WorkloadError", "DeviceError"])
def test_what_cannot_be_loaded_is_raised_as_what_it_is(start: Start, name: str) -> None:
    worker = start(f"cannot load:{name}")
    with pytest.raises(AutotuneError) as caught:
        worker.wait_ready(time_limit_s=LIMIT_S)
    assert type(caught.value) is ERRORS_BY_NAME[name]
    assert (caught.value.cause, caught.value.remedy) == ("No such column.", "Name another.")
    assert not worker.is_alive


def test_an_error_of_an_unknown_name_is_still_one_of_ours(start: Start) -> None:
    worker = start("cannot load:SomethingNew")
    with pytest.raises(AutotuneError) as caught:
        worker.wait_ready(time_limit_s=LIMIT_S)
    assert type(caught.value) is AutotuneError
    assert not isinstance(caught.value, WorkloadError)


def test_a_worker_that_dies_while_it_loads_is_quoted_alone(start: Start, tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text("the last words of an earlier worker\n")
    with pytest.raises(WorkerDiedError) as caught:
        start("dies loading:3").wait_ready(time_limit_s=LIMIT_S)
    assert caught.value.cause == (
        "The process ended with exit code 3 without an answer. It last said: the disk is on fire"
    )
    assert caught.value.remedy == f"Its log is {tmp_path / 'worker.log'}."


@pytest.mark.parametrize(
    ("sign", "remedy"),
    [
        ("kernel", "Free memory on this machine, or choose a smaller model; --resume goes on with"),
        ("unknown", "Free memory on this machine, or choose a smaller model; --resume goes on"),
        ("none", "Find out who ended it; --resume goes on with every finished trial."),
    ],
)
def test_who_killed_a_worker_that_loads_decides_what_to_do(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign: MemorySign, remedy: str
) -> None:
    (tmp_path / "worker.log").write_text("the disk is on fire\n")
    monkeypatch.setattr(KillWatch, "sign", lambda self: sign)
    with pytest.raises(WorkerDiedError) as caught:
        start("killed loading").wait_ready(time_limit_s=LIMIT_S)
    assert "killed from outside" in caught.value.cause
    assert "disk" not in caught.value.cause
    assert caught.value.remedy is not None
    assert caught.value.remedy.startswith(remedy)


def test_memory_that_does_not_suffice_to_load_is_said(start: Start) -> None:
    with pytest.raises(WorkerDiedError) as caught:
        start("no memory to load").wait_ready(time_limit_s=LIMIT_S)
    assert caught.value.cause == (
        "Memory did not suffice to load the workload. can't allocate 9 GiB"
    )


def test_an_unexpected_first_word_is_an_error(start: Start) -> None:
    with pytest.raises(WorkerDiedError, match="memory_measured"):
        start("says nonsense first").wait_ready(time_limit_s=LIMIT_S)


def test_loading_has_a_time_limit(start: Start) -> None:
    worker = start("hangs loading")
    with pytest.raises(WorkerDiedError, match="took longer than 0 s"):
        worker.wait_ready(time_limit_s=0.2)
    assert not worker.is_alive


def test_loading_can_be_stopped(start: Start) -> None:
    worker = start("hangs loading")
    stopped = worker.wait_ready(time_limit_s=LIMIT_S, should_stop=lambda: "You said so.")
    assert stopped == Stopped(cause="You said so.")
    assert not worker.is_alive


def test_a_command_has_a_time_limit(start: Start, tmp_path: Path) -> None:
    worker = ready(start, "hangs")
    reply = worker.ask(COMMAND, log=tmp_path / "log", time_limit_s=0.3)
    assert reply == TimedOut(limit_s=0.3, cause="No answer within 0 s; the worker was ended.")
    assert not worker.is_alive


def test_a_command_can_be_stopped(start: Start, tmp_path: Path) -> None:
    worker = ready(start, "hangs")
    begin_s = time.monotonic()
    reply = worker.ask(
        COMMAND,
        log=tmp_path / "log",
        time_limit_s=LIMIT_S,
        should_stop=lambda: "Ctrl-C" if time.monotonic() > begin_s + 0.3 else None,
    )
    assert reply == Stopped(cause="Ctrl-C")
    assert not worker.is_alive


def test_a_crash_quotes_the_log_of_its_command(start: Start, tmp_path: Path) -> None:
    worker = ready(start, "crashes")
    log = tmp_path / "log"
    log.write_text("what the command before printed\n")
    assert worker.ask(COMMAND, log=log, time_limit_s=LIMIT_S) == Failed(
        cause="The process died of SIGSEGV. It last said: about to crash"
    )
    silent = ready(start, "crashes silently")
    assert silent.ask(COMMAND, log=log, time_limit_s=LIMIT_S) == Failed(
        cause="The process died of SIGSEGV. It last said: long ago"
    )


def test_a_worker_that_died_between_commands_is_an_outcome(start: Start, tmp_path: Path) -> None:
    worker = ready(start, "dies idle")
    first = worker.ask(COMMAND, log=tmp_path / "log", time_limit_s=LIMIT_S)
    assert isinstance(first, MemoryMeasured)
    assert processes.wait_for(lambda: not worker.is_alive)
    died = Failed(cause="The process ended with exit code 7 without an answer.")
    for _ in range(2):
        assert worker.ask(COMMAND, log=tmp_path / "log", time_limit_s=LIMIT_S) == died


def test_a_child_left_behind_does_not_hide_the_end_of_its_worker(
    start: Start, tmp_path: Path
) -> None:
    worker = ready(start, "leaves a child")
    assert worker.ready is not None
    begin_s = time.monotonic()
    reply = worker.ask(COMMAND, log=tmp_path / "log", time_limit_s=LIMIT_S)
    assert isinstance(reply, Failed)
    assert "exit code 3" in reply.cause
    assert time.monotonic() - begin_s < LIMIT_S / 2
    group = worker.ready.process
    assert processes.wait_for(lambda: not members(group)), "the child outlived its worker"


def members(group: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def test_a_worker_that_is_no_longer_clean_is_ended(start: Start, tmp_path: Path) -> None:
    worker = ready(start, "is no longer clean")
    reply = worker.ask(COMMAND, log=tmp_path / "log", time_limit_s=LIMIT_S)
    assert isinstance(reply, MemoryMeasured)
    assert not worker.is_alive


def test_closing_twice_ends_nobody_else(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = ready(start, "answers")
    ended: list[int] = []
    kill = os.killpg

    def record(group: int, signal: int) -> None:
        ended.append(group)
        kill(group, signal)

    monkeypatch.setattr(os, "killpg", record)
    with worker:
        pass
    worker.close()
    assert worker.ready is not None
    assert ended == [worker.ready.process]


@pytest.mark.parametrize("sign", ["pressure", "none"])
def test_a_killed_worker_suggests_memory_where_the_system_was_short_of_it(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign: MemorySign
) -> None:
    monkeypatch.setattr(KillWatch, "sign", lambda self: sign)
    worker = ready(start, "hangs")
    assert worker.ready is not None
    process = psutil.Process(worker.ready.process)
    reply = worker.ask(
        COMMAND,
        log=tmp_path / "log",
        time_limit_s=LIMIT_S,
        # Called many times while the answer is awaited.
        should_stop=lambda: process.kill() if process.is_running() else None,
    )
    if sign == "none":
        assert isinstance(reply, Failed)
        assert reply.is_killed
    else:
        assert isinstance(reply, OutOfMemory)
        assert (reply.where, reply.is_certain) == ("host", False)
