"""The worker in this process, without the start of another one."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from autotune.configuration import Configuration
from autotune.outcome import Failed, OutOfMemory
from autotune.trial import device as device_module
from autotune.trial.channel import Channel
from autotune.trial.process import redirected_output
from autotune.trial.protocol import (
    CannotLoad,
    CheckParity,
    Command,
    ContinueSpeed,
    Envelope,
    MeasureMemory,
    MeasureSpeed,
    MemoryMeasured,
    Message,
    OpenSpeed,
    ParityFound,
    Progress,
    Ready,
    Reply,
    SpeedMeasured,
    envelope_adapter,
)
from autotune.trial.ranks.place import Company
from autotune.trial.worker import Worker
from autotune.workload.spec import Columns, WorkloadSpec
from tests.autotune.export.jobs import quiet
from tests.autotune.trial import processes, workloads

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    # Python warns of forks beside threads; these forks touch none.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*"),
]
CONFIGURATION = Configuration(micro_batch_size=4, accumulation_steps=2)
GIB = 2**30


def memory_command(limit_bytes: int = 64 * GIB) -> MeasureMemory:
    return MeasureMemory(configuration=CONFIGURATION, limit_bytes=limit_bytes)


def speed_command(num_steps: int = 2) -> MeasureSpeed:
    return MeasureSpeed(
        configuration=CONFIGURATION,
        min_steps=num_steps,
        max_steps=num_steps,
        max_seconds=60,
        with_phases=False,
    )


class Line:
    """Both ends of a channel."""

    def __init__(self) -> None:
        self.engine, theirs = socket.socketpair()
        self.engine.settimeout(60)
        self.worker = Channel(theirs.detach())
        self._lines = self.engine.makefile("rb")

    def say(self, command: Command, log: Path | None = None) -> None:
        envelope = Envelope(body=command, log=str(log) if log else None)
        self.engine.sendall(envelope_adapter().dump_json(envelope) + b"\n")

    def hear(self) -> Envelope:
        """The next message that is no progress."""
        while True:
            envelope = envelope_adapter().validate_json(self._lines.readline())
            if not isinstance(envelope.body, Progress):
                return envelope

    def close(self) -> None:
        self._lines.close()
        self.engine.close()


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()
    made.worker.close()


def make(
    line: Line,
    spec: WorkloadSpec,
    place: Path,
    isolation: Literal["fork", "inline"] = "inline",
    kind: type[Worker] = Worker,
) -> Worker:
    return kind(line.worker, processes.options(spec, place, isolation=isolation))


def loaded(line: Line, place: Path, spec: WorkloadSpec | None = None) -> Worker:
    worker = make(line, spec or workloads.causal_spec(place, 21), place)
    with quiet():
        worker.load()
    assert isinstance(line.hear().body, Ready)
    return worker


def test_loading_says_what_was_loaded(line: Line, tmp_path: Path) -> None:
    worker = make(line, workloads.causal_spec(tmp_path, 21), tmp_path)
    with quiet():
        worker.load()
    ready = line.hear().body
    assert isinstance(ready, Ready)
    assert (ready.facts.model_class, ready.facts.num_rows) == ("GPT2LMHeadModel", 21)
    assert ready.process == os.getpid()
    assert ready.device == str(device_module.current_device())
    assert 50 * 2**20 < ready.level_bytes <= device_module.resident_bytes() + 64 * 2**20
    assert ready.load_s > 0


def test_a_workload_that_cannot_be_loaded_is_named_with_its_remedy(
    line: Line, tmp_path: Path
) -> None:
    spec = replace(workloads.causal_spec(tmp_path, 3), columns=Columns(text="txt"))
    with quiet(), pytest.raises(SystemExit) as caught:
        make(line, spec, tmp_path).load()
    assert caught.value.code == 0
    said = line.hear().body
    assert isinstance(said, CannotLoad)
    assert said.error == "WorkloadError"
    assert "txt" in said.cause
    assert said.remedy is not None
    assert "text" in said.remedy


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (MemoryError("no room"), OutOfMemory(where="host", cause="no room")),
        (ZeroDivisionError("odd"), Failed(cause="ZeroDivisionError: odd")),
    ],
)
def test_whatever_else_happens_at_loading_is_told(
    line: Line,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    meant: Message,
) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr("autotune.workload.load.load", fail)
    with pytest.raises(SystemExit):
        make(line, workloads.causal_spec(tmp_path, 3), tmp_path).load()
    assert line.hear().body == meant


def test_without_a_fork_every_command_starts_from_the_same_weights(
    line: Line, tmp_path: Path
) -> None:
    worker = loaded(line, tmp_path)
    commands: list[Command] = [
        memory_command(),
        speed_command(),
        CheckParity(num_rows=8, accumulation_steps=4),
        speed_command(),
        memory_command(),
    ]
    with quiet():
        replies = [worker.answer(Envelope(body=command)) for command in commands]
    memory, speed, parity, speed_again, memory_again = replies
    assert isinstance(memory, MemoryMeasured)
    assert isinstance(memory_again, MemoryMeasured)
    assert memory.memory.total_bytes == memory_again.memory.total_bytes
    assert isinstance(speed, SpeedMeasured)
    assert isinstance(speed_again, SpeedMeasured)
    assert speed.speed is not None
    assert speed_again.speed is not None
    assert speed.speed.losses == speed_again.speed.losses
    assert speed.speed.losses[0] != speed.speed.losses[1]
    assert isinstance(parity, ParityFound)


def test_steps_are_timed_within_the_whole_command(line: Line, tmp_path: Path) -> None:
    worker = loaded(line, tmp_path)
    start_s = time.perf_counter()
    with quiet():
        command = MeasureSpeed(
            configuration=CONFIGURATION, min_steps=3, max_steps=3, max_seconds=60
        )
        reply = worker.answer(Envelope(body=command))
    wall_s = time.perf_counter() - start_s
    assert isinstance(reply, SpeedMeasured)
    assert reply.speed is not None
    assert reply.phases is not None
    assert reply.speed.step_samples == (8, 8, 8)
    assert reply.speed.num_warmup_steps == 2
    assert sum(reply.speed.step_times_s) < reply.steps_s < wall_s
    assert not list((tmp_path / "scratch").glob("trial-*")), "scratch space is left over"


def test_running_out_says_where_and_against_which_limit(line: Line, tmp_path: Path) -> None:
    worker = loaded(line, tmp_path)
    limit_bytes = worker.level_bytes + 100_000
    with quiet():
        reply = worker.answer(Envelope(body=memory_command(limit_bytes)))
    assert isinstance(reply, OutOfMemory)
    assert (reply.where, reply.is_certain, reply.limit_bytes) == ("host", True, limit_bytes)
    assert reply.needed_at_least_bytes is not None
    assert reply.needed_at_least_bytes > limit_bytes


def test_blocks_go_on_where_the_last_one_ended(line: Line, tmp_path: Path) -> None:
    worker = loaded(line, tmp_path)
    with quiet():
        whole = worker.answer(Envelope(body=speed_command(4)))
        opened = worker.answer(Envelope(body=OpenSpeed(configuration=CONFIGURATION)))
        blocks = [worker.answer(Envelope(body=ContinueSpeed(num_steps=2))) for _ in range(2)]
        other = worker.answer(Envelope(body=memory_command()))
    assert isinstance(whole, SpeedMeasured)
    assert whole.speed is not None
    assert isinstance(opened, SpeedMeasured)
    assert opened.speed is None
    assert opened.steps_s > 0
    losses: list[float | None] = []
    for block in blocks:
        assert isinstance(block, SpeedMeasured)
        assert block.speed is not None
        assert len(block.speed.step_times_s) == 2
        assert sum(block.speed.step_times_s) == pytest.approx(block.steps_s, rel=1e-6)
        losses += block.speed.losses
    assert tuple(losses) == whole.speed.losses
    # The session holds its memory and has trained the model.
    assert isinstance(other, Failed)
    assert "nothing but its blocks" in other.cause


def test_a_block_without_a_session_is_refused(line: Line, tmp_path: Path) -> None:
    reply = make(line, WorkloadSpec(task="causal-lm"), tmp_path).answer(
        Envelope(body=ContinueSpeed(num_steps=1))
    )
    assert isinstance(reply, Failed)
    assert "must be opened" in reply.cause


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


def test_a_killed_fork_only_suggests_memory(line: Line, tmp_path: Path) -> None:
    scripted(line, tmp_path, die_of(signal.SIGKILL))._answer_in_fork(
        Envelope(body=memory_command()), None
    )
    reply = line.hear().body
    assert isinstance(reply, OutOfMemory)
    assert (reply.where, reply.is_certain) == ("host", False)


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


class Quitting(Worker):
    def _answer(self, command: Command, company: Company) -> Reply:
        raise SystemExit(4)


def test_a_job_that_ends_its_own_process_has_failed(line: Line, tmp_path: Path) -> None:
    worker = make(line, WorkloadSpec(task="causal-lm"), tmp_path, kind=Quitting)
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


def test_output_goes_to_the_log_while_it_is_redirected(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "deep" / "log"
    with redirected_output(log):
        os.write(1, b"said\n")
        os.write(2, b"warned\n")
    os.write(1, b"afterwards\n")
    with redirected_output(log):
        os.write(1, b"again\n")
    with redirected_output(None):
        os.write(1, b"nowhere else\n")
    assert log.read_text() == "said\nwarned\nagain\n"
    assert capfd.readouterr().out == "afterwards\nnowhere else\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_threads_are_those_that_the_user_computes_with(line: Line, tmp_path: Path) -> None:
    torch.set_num_threads(2)
    worker = loaded(line, tmp_path)
    assert (worker.num_threads, torch.get_num_threads()) == (2, 2)
