"""The worker in this process, without the start of another one."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autotune.outcome import Failed, OutOfMemory
from autotune.trial import device as device_module
from autotune.trial.process import redirected_output
from autotune.trial.protocol import (
    CannotLoad,
    CheckParity,
    Command,
    ContinueSpeed,
    Envelope,
    MeasureSpeed,
    MemoryMeasured,
    Message,
    OpenSpeed,
    ParityFound,
    Ready,
    SpeedMeasured,
)
from autotune.workload.spec import Columns, WorkloadSpec
from tests.autotune.export.jobs import quiet
from tests.autotune.trial import workloads
from tests.autotune.trial.lines import CONFIGURATION, Line, loaded, make, memory_command

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")


def speed_command(num_steps: int = 2) -> MeasureSpeed:
    return MeasureSpeed(
        configuration=CONFIGURATION,
        min_steps=num_steps,
        max_steps=num_steps,
        max_seconds=60,
        with_phases=False,
    )


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
    limit_bytes = worker.answers.level_bytes + 100_000
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


def test_a_block_can_begin_further_on_in_the_data(line: Line, tmp_path: Path) -> None:
    worker = loaded(line, tmp_path)
    with quiet():
        whole = worker.answer(Envelope(body=speed_command(4)))
        later = worker.answer(Envelope(body=replace(speed_command(2), num_skipped_steps=2)))
    assert isinstance(whole, SpeedMeasured)
    assert isinstance(later, SpeedMeasured)
    assert whole.speed is not None
    assert later.speed is not None
    assert len({*whole.speed.step_tokens}) > 1
    assert later.speed.step_tokens == whole.speed.step_tokens[2:]


def test_a_block_without_a_session_is_refused(line: Line, tmp_path: Path) -> None:
    reply = make(line, WorkloadSpec(task="causal-lm"), tmp_path).answer(
        Envelope(body=ContinueSpeed(num_steps=1))
    )
    assert isinstance(reply, Failed)
    assert "must be opened" in reply.cause


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


def test_a_log_that_cannot_be_written_keeps_nobody_from_answering(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    num_open = len(os.listdir("/dev/fd"))
    with redirected_output(tmp_path / "file" / "log"):
        os.write(1, b"said\n")
    assert len(os.listdir("/dev/fd")) == num_open
    found = capfd.readouterr()
    assert found.out == "said\n"
    assert "file/log cannot be written: " in found.err


def test_threads_are_those_that_the_user_computes_with(line: Line, tmp_path: Path) -> None:
    torch.set_num_threads(2)
    worker = loaded(line, tmp_path)
    assert (worker.answers.num_threads, torch.get_num_threads()) == (2, 2)
