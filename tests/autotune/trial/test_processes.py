"""Real workers, forked for every command: what they measure, how they die, that nothing is left.

The tests share one worker for as long as it lives, and go on with the next one after it.
"""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.configuration import Checkpointing, Configuration
from autotune.outcome import Failed, OutOfMemory, Stopped, TimedOut
from autotune.run_directory import RunDirectory
from autotune.trial.client import Worker
from autotune.trial.pool import WorkerPool
from autotune.trial.protocol import (
    CheckParity,
    CheckpointingTried,
    Command,
    ContinueSpeed,
    Envelope,
    MeasureMemory,
    MeasureSpeed,
    MemoryMeasured,
    OpenSpeed,
    ParityFound,
    Progress,
    Ready,
    Reply,
    SpeedMeasured,
    TryCheckpointing,
    envelope_adapter,
)
from autotune.trial.readings.checks import check_parity
from autotune.trial.stepper import make_stepper, train_window
from autotune.workload.loaded import LoadedWorkload
from autotune.workload.spec import WorkloadSpec
from probes.kills import read_memory_kills
from tests.autotune.export.jobs import quiet
from tests.autotune.trial import processes, workloads

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks"),
]
GIB = 2**30
MIB = 2**20
LIMIT_S = 120.0
CONFIGURATION = Configuration(micro_batch_size=4, accumulation_steps=2)


class Job:
    """A pool of real workers on one small job."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.log = place / "log"
        self.told: list[Progress] = []
        self.spec: WorkloadSpec = workloads.causal_spec(place, 21, width=32)
        self.pool = WorkerPool(
            RunDirectory(place / "run"),
            processes.options(self.spec, place),
            processes.environment(),
            lambda: None,
        )

    def ask(self, command: Command, *, time_limit_s: float = LIMIT_S) -> Reply | TimedOut | Stopped:
        return self.pool.ask(
            command, log=self.log, time_limit_s=time_limit_s, on_progress=self.told.append
        )

    def ready(self) -> Ready:
        ready = self.pool.ready()
        assert isinstance(ready, Ready)
        return ready

    def worker(self) -> Worker:
        worker = self.pool.warm()
        assert isinstance(worker, Worker)
        return worker

    def memory(
        self,
        micro_batch_size: int,
        *,
        limit_bytes: int = 64 * GIB,
        fence_bytes: int | None = None,
    ) -> Reply | TimedOut | Stopped:
        return self.ask(
            MeasureMemory(
                configuration=Configuration(
                    micro_batch_size=micro_batch_size, accumulation_steps=1
                ),
                limit_bytes=limit_bytes,
                memory_fence_bytes=fence_bytes,
            )
        )

    def total_bytes(self, micro_batch_size: int) -> int:
        reply = self.memory(micro_batch_size)
        assert isinstance(reply, MemoryMeasured), reply
        return reply.memory.total_bytes


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    made = Job(tmp_path_factory.mktemp("job"))
    yield made
    made.pool.close()


@pytest.fixture(scope="module")
def here(job: Job) -> LoadedWorkload:
    """The same job in this process."""
    return workloads.loaded(job.spec, job.place)


ENDLESS = MeasureSpeed(
    configuration=CONFIGURATION, min_steps=10**6, max_steps=10**6, max_seconds=1e9
)


def test_ready_says_what_was_loaded(job: Job, here: LoadedWorkload) -> None:
    ready = job.ready()
    assert ready.facts == here.facts
    assert ready.device == "cpu"
    assert psutil.pid_exists(ready.process)
    assert ready.load_s > 0
    assert 50 * MIB < ready.level_bytes < 4 * GIB


def test_bytes_are_counted_alike_in_whatever_order_sizes_are_tried(job: Job) -> None:
    sizes = [16, 1, 4]
    found = {size: job.total_bytes(size) for size in sizes}
    assert found[1] < found[4] < found[16]
    limit_bytes = found[16] - 1
    refused = job.memory(16, limit_bytes=limit_bytes)
    assert isinstance(refused, OutOfMemory)
    assert (refused.where, refused.is_certain) == ("host", True)
    assert refused.limit_bytes == limit_bytes
    assert refused.needed_at_least_bytes is not None
    assert limit_bytes < refused.needed_at_least_bytes <= found[16]
    assert {size: job.total_bytes(size) for size in reversed(sizes)} == found
    assert job.pool.num_cold_starts == 1


def test_a_refusal_of_the_allocator_leaves_the_next_command_alone(job: Job) -> None:
    before = job.total_bytes(16)
    refused = job.memory(16, fence_bytes=0)
    # Under so tight a fence anything may be refused, an answer in words included.
    assert isinstance(refused, OutOfMemory | Failed)
    assert job.total_bytes(16) == before
    assert job.pool.num_cold_starts == 1


def test_a_fence_with_room_changes_nothing(job: Job) -> None:
    free = job.memory(4)
    fenced = job.memory(4, fence_bytes=GIB)
    assert isinstance(free, MemoryMeasured)
    assert isinstance(fenced, MemoryMeasured)
    assert replace(fenced.memory, high_water_bytes=None) == replace(
        free.memory, high_water_bytes=None
    )


def test_speed_is_measured_on_the_steps_of_the_job(job: Job, here: LoadedWorkload) -> None:
    job.told.clear()
    reply = job.ask(
        MeasureSpeed(configuration=CONFIGURATION, min_steps=3, max_steps=3, max_seconds=LIMIT_S)
    )
    assert isinstance(reply, SpeedMeasured)
    assert reply.speed is not None
    assert reply.phases is not None
    assert reply.speed.step_samples == (8, 8, 8)
    assert all(time_s > 0 for time_s in reply.speed.step_times_s)
    stages = [progress.stage for progress in job.told]
    assert stages == ["warm-up", "warm-up", "speed", "speed", "phases"]
    with quiet():
        stepper = make_stepper(
            replace(here, model=copy.deepcopy(here.model)),
            CONFIGURATION,
            driver="trainer",
            output_dir=str(job.place / "here"),
            repair_loss=False,
        )
    meant = [float(train_window(stepper, stepper.next_window())) for _ in range(5)]
    assert reply.speed.losses == pytest.approx(meant[2:], rel=1e-4)


def test_checks_come_out_as_in_this_process(job: Job, here: LoadedWorkload) -> None:
    parity = job.ask(CheckParity(num_rows=8, accumulation_steps=4))
    assert isinstance(parity, ParityFound)
    with quiet():
        meant = check_parity(
            replace(here, model=copy.deepcopy(here.model)),
            num_rows=8,
            accumulation_steps=4,
            driver="trainer",
            output_dir=str(job.place / "here"),
        )
    assert parity.losses == pytest.approx(meant.losses, rel=1e-5)
    tried = job.ask(TryCheckpointing(every_n_layers=(1,)))
    assert isinstance(tried, CheckpointingTried)
    (form,) = tried.forms
    assert form.is_available
    assert form.saved_bytes is not None
    assert form.saved_bytes < tried.saved_bytes_without


def test_an_impossible_configuration_fails_with_the_librarys_words(job: Job) -> None:
    impossible = Checkpointing(every_n_layers=1, offload=True)
    reply = job.ask(
        MeasureMemory(
            configuration=replace(CONFIGURATION, checkpointing=impossible),
            limit_bytes=64 * GIB,
            repair_loss=True,
        )
    )
    # Offloading without an accelerator is up to the library; the worker lives either way.
    assert isinstance(reply, MemoryMeasured | Failed)
    assert job.pool.num_cold_starts == 1


def test_what_is_printed_goes_to_the_log_of_the_command(job: Job) -> None:
    job.log.unlink(missing_ok=True)
    job.total_bytes(1)
    assert "loss_type" in job.log.read_text()
    assert "loss_type" not in (job.place / "run" / "worker.log").read_text()


def while_running(job: Job, act: Callable[[psutil.Process], None]) -> Reply | TimedOut | Stopped:
    """Asks for steps without end and does something to the fork that makes them."""
    process = job.ready().process
    found: list[psutil.Process] = []

    def on_progress(progress: Progress) -> None:
        if not found:
            found.extend(processes.forks_of(process))
            act(found[0])

    reply = job.pool.ask(ENDLESS, log=job.log, time_limit_s=LIMIT_S, on_progress=on_progress)
    assert len(found) == 1
    return reply


def test_a_killed_fork_is_memory_only_where_the_system_says_so(job: Job) -> None:
    before = job.total_bytes(4)
    reply = while_running(job, lambda fork: fork.kill())
    if read_memory_kills() is None:
        assert isinstance(reply, OutOfMemory)
        assert (reply.where, reply.is_certain) == ("host", False)
    else:
        assert isinstance(reply, Failed)
        assert reply.is_killed
    assert job.total_bytes(4) == before
    assert job.pool.num_cold_starts == 1


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_crashed_fork_has_failed(job: Job, number: signal.Signals) -> None:
    reply = while_running(job, lambda fork: fork.send_signal(number))
    assert isinstance(reply, Failed)
    assert reply.cause.startswith(f"The process died of {number.name}.")
    assert isinstance(job.memory(1), MemoryMeasured)
    assert job.pool.num_cold_starts == 1


def tree_of(process: int) -> list[psutil.Process]:
    root = psutil.Process(process)
    return [root, *root.children(recursive=True)]


def are_gone(found: list[psutil.Process]) -> bool:
    """Whether none runs any more; a zombie waits for its parent alone."""
    return all(
        not process.is_running() or process.status() == psutil.STATUS_ZOMBIE for process in found
    )


def test_over_its_time_a_worker_goes_with_everything_it_started(job: Job) -> None:
    process = job.ready().process
    before = job.total_bytes(4)
    tree: list[psutil.Process] = []

    def note(progress: Progress) -> None:
        tree[:] = tree_of(process)

    reply = job.pool.ask(ENDLESS, log=job.log, time_limit_s=5.0, on_progress=note)
    assert isinstance(reply, TimedOut)
    assert reply.limit_s == 5.0
    assert len(tree) == 2, "the steps were made in a fork"
    assert processes.wait_for(lambda: are_gone(tree))
    # The next worker starts where the first one did.
    assert job.ready().process != process
    level_bytes = job.ready().level_bytes
    reply = job.memory(4)
    assert isinstance(reply, MemoryMeasured)
    assert reply.memory.outside_bytes == level_bytes
    assert reply.memory.total_bytes == pytest.approx(before, rel=0.1)
    assert job.pool.num_cold_starts == 2


def test_a_worker_ends_with_its_fork_when_the_engine_closes_its_end(job: Job) -> None:
    worker = job.worker()
    process = job.ready().process
    line = envelope_adapter().dump_json(Envelope(body=ENDLESS, log=str(job.log)))
    worker._socket.sendall(line + b"\n")
    assert processes.wait_for(lambda: len(tree_of(process)) == 2)
    tree = tree_of(process)
    worker._socket.close()
    assert processes.wait_for(lambda: are_gone(tree))
    worker.close()


def test_blocks_of_one_session_are_timed_in_the_worker_itself(job: Job) -> None:
    process = job.ready().process
    whole = job.ask(
        MeasureSpeed(
            configuration=CONFIGURATION,
            min_steps=4,
            max_steps=4,
            max_seconds=LIMIT_S,
            with_phases=False,
        )
    )
    assert isinstance(whole, SpeedMeasured)
    assert whole.speed is not None
    opened = job.ask(OpenSpeed(configuration=CONFIGURATION))
    assert isinstance(opened, SpeedMeasured)
    losses: list[float | None] = []
    for _ in range(2):
        block = job.ask(ContinueSpeed(num_steps=2))
        assert isinstance(block, SpeedMeasured)
        assert block.speed is not None
        losses += block.speed.losses
    assert losses == pytest.approx(whole.speed.losses, rel=1e-5)
    assert processes.forks_of(process) == []
    refused = job.memory(4)
    assert isinstance(refused, Failed)
    assert "nothing but its blocks" in refused.cause


ENGINE = """
import sys
from pathlib import Path
from autotune.trial.client import Worker
from tests.autotune.trial import processes, workloads
from tests.autotune.trial.test_processes import ENDLESS

place = Path(sys.argv[1])
worker = processes.start(workloads.causal_spec(place, 21), place)
worker.wait_ready(time_limit_s=processes.LOAD_LIMIT_S)

def tell(progress):
    print(worker.ready.process, flush=True)

worker.ask(ENDLESS, log=place / "log", time_limit_s=600, on_progress=tell)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_nothing_outlives_an_engine_that_is_killed(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[3])
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**processes.environment(), "PYTHONPATH": root},
    ) as engine:
        assert engine.stdout is not None
        process = int(engine.stdout.readline())
        tree = tree_of(process)
        assert len(tree) == 2
        engine.kill()
    assert processes.wait_for(lambda: are_gone(tree))
