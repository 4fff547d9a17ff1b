"""How a worker outlives what it forks and what it keeps, and when it ends itself."""

from __future__ import annotations

import errno
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from autotune.outcome import Failed, OutOfMemory
from autotune.trial import device as device_module
from autotune.trial.protocol import Command, ContinueSpeed, Envelope, Reply, StartBeside
from autotune.trial.ranks.place import Company
from autotune.trial.worker import Worker
from autotune.workload.loaded import LoadedWorkload
from autotune.workload.spec import WorkloadSpec
from probes import kills
from tests.autotune.trial.lines import Line, make, memory_command

# Python warns of forks beside threads; these forks touch none.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*")


class Scripted(Worker):
    """Does what a job might do in the middle of a command."""

    action: Callable[[], Reply]

    def answer(self, envelope: Envelope) -> Reply:
        return type(self).action()


def scripted(line: Line, place: Path, action: Callable[[], Reply]) -> Worker:
    kind = type("ScriptedNow", (Scripted,), {"action": staticmethod(action)})
    return make(line, WorkloadSpec(task="causal-lm"), place, "fork", kind)


def say_and(act: Callable[[], Reply]) -> Callable[[], Reply]:
    def call() -> Reply:
        os.write(1, b"ok\n")
        return act()

    return call


def die_of(number: signal.Signals) -> Callable[[], Reply]:
    def call() -> Reply:
        faulthandler.disable()
        os.kill(os.getpid(), number)
        time.sleep(60)
        raise AssertionError

    return call


def exit_with(code: int) -> Callable[[], Reply]:
    return lambda: os._exit(code)


def interrupt() -> Reply:
    raise KeyboardInterrupt("odd")


@pytest.mark.parametrize(
    ("act", "cause"),
    [
        (exit_with(0), "The process ended with exit code 0 without an answer."),
        (exit_with(3), "The process ended with exit code 3 without an answer."),
        (die_of(signal.SIGSEGV), "The process died of SIGSEGV."),
        (interrupt, "The process ended with exit code 1 without an answer."),
    ],
    ids=["exit 0", "exit 3", "segmentation fault", "interrupt"],
)
def test_a_fork_that_ends_without_an_answer_has_failed(
    line: Line, tmp_path: Path, act: Callable[[], Reply], cause: str
) -> None:
    log = tmp_path / "log"
    log.write_text("printed by the command before\n")
    scripted(line, tmp_path, say_and(act))._answer_in_fork(Envelope(body=memory_command()), log)
    assert line.hear().body == Failed(cause=f"{cause} It last said: ok")


@pytest.mark.parametrize(("counts", "kind"), [((4, 5), "out_of_memory"), ((4, 4), "failed")])
def test_a_killed_fork_is_memory_where_the_kernel_counted_it(
    line: Line,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    counts: tuple[int, int],
    kind: str,
) -> None:
    worker, found = scripted(line, tmp_path, die_of(signal.SIGKILL)), iter(counts)
    monkeypatch.setattr(kills, "read_memory_kills", lambda root: next(found))
    worker._answer_in_fork(Envelope(body=memory_command()), None)
    reply = line.hear().body
    assert reply.kind == kind
    if isinstance(reply, OutOfMemory):
        assert (reply.where, reply.is_certain) == ("host", False)
    else:
        assert isinstance(reply, Failed)
        assert reply.is_killed


@pytest.mark.parametrize(
    ("number", "meant"),
    [
        (
            errno.ENOMEM,
            OutOfMemory(where="host", cause="[Errno 12] Cannot allocate memory"),
        ),
        (
            errno.EAGAIN,
            Failed(cause="BlockingIOError: [Errno 11] Resource temporarily unavailable"),
        ),
    ],
    ids=["memory", "processes"],
)
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other numbers and words")
def test_where_no_process_can_be_made_that_is_the_answer_and_the_worker_goes_on(
    line: Line,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    meant: OutOfMemory | Failed,
) -> None:
    def refuse() -> int:
        raise OSError(number, os.strerror(number))

    worker = scripted(line, tmp_path, lambda: Failed(cause="of its own"))
    worker.answers.workload = cast("LoadedWorkload", object())
    monkeypatch.setattr(os, "fork", refuse)
    for command in (memory_command(), StartBeside(module="nothing", document={})):
        line.say(command)
    line.engine.shutdown(socket.SHUT_WR)
    worker.serve()
    assert [line.hear().body for _ in range(2)] == [meant, meant]


def test_a_fork_that_answers_is_not_answered_for(line: Line, tmp_path: Path) -> None:
    worker = scripted(line, tmp_path, lambda: Failed(cause="of its own"))
    for _ in range(2):
        worker._answer_in_fork(Envelope(body=memory_command()), tmp_path / "log")
        assert line.hear().body == Failed(cause="of its own")
    line.engine.settimeout(0.2)
    with pytest.raises(TimeoutError):
        line.hear()


@pytest.mark.parametrize("has_descriptors", [True, False])
def test_a_fork_is_waited_for_with_and_without_descriptors_of_processes(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_descriptors: bool
) -> None:
    if not has_descriptors:

        def refuse(process: int) -> int:
            raise OSError("not here")

        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    worker = scripted(line, tmp_path, exit_with(5))
    # A command that waits already must not be taken for the end of the engine.
    line.say(memory_command())
    worker._answer_in_fork(Envelope(body=memory_command()), None)
    reply = line.hear().body
    assert isinstance(reply, Failed)
    assert "exit code 5" in reply.cause


def test_a_job_that_ends_its_own_process_has_failed(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(command: Command, company: Company) -> Reply:
        raise SystemExit(4)

    worker = make(line, WorkloadSpec(task="causal-lm"), tmp_path)
    monkeypatch.setattr(worker.answers, "_carry_out", leave)
    assert worker.answer(Envelope(body=memory_command())) == Failed(
        cause="The job ended its own process (sys.exit(4))."
    )


def serve(worker: Worker) -> threading.Thread:
    thread = threading.Thread(target=worker.serve, daemon=True)
    thread.start()
    return thread


class Leaking(Worker):
    """Leaves memory behind on a device of the test's making."""

    leaked_bytes = 0

    def answer(self, envelope: Envelope) -> Reply:
        command = envelope.body
        assert isinstance(command, ContinueSpeed)
        Leaking.leaked_bytes += command.num_steps
        return Failed(cause="done")


def test_a_worker_that_keeps_memory_on_the_device_ends_after_its_reply(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_module, "allocated_bytes", lambda device: Leaking.leaked_bytes)
    thread = serve(make(line, WorkloadSpec(task="causal-lm"), tmp_path, kind=Leaking))
    kept = []
    # What the first command leaves are workspaces; later ones must not add to them.
    for num_bytes in (500 * 2**20, 0, 60 * 2**20, 10 * 2**20):
        line.say(ContinueSpeed(num_steps=num_bytes))
        kept.append(line.hear().is_last)
    assert kept == [False, False, False, True]
    thread.join(10)
    assert not thread.is_alive()


def test_a_worker_ends_when_the_engine_does(line: Line, tmp_path: Path) -> None:
    thread = serve(make(line, WorkloadSpec(task="causal-lm"), tmp_path))
    line.close()
    thread.join(10)
    assert not thread.is_alive()
