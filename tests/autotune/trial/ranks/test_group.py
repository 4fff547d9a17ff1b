"""Two real ranks on gloo: measured together, and what becomes of all when one goes wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.configuration import Configuration
from autotune.outcome import Failed, OutOfMemory, Stopped, TimedOut
from autotune.trial.protocol import (
    Command,
    GroupReply,
    LinkMeasured,
    MeasureLink,
    MeasureMemory,
    MeasureSpeed,
    MemoryMeasured,
    Progress,
    Ready,
    SpeedMeasured,
)
from autotune.trial.ranks.group import RankGroup
from autotune.trial.stepper import make_stepper, train_window
from autotune.workload.spec import WorkloadSpec
from probes.collectives.result import link_of
from probes.kills import read_memory_kills
from probes.ranks.launch import Ranks
from tests.autotune.export.jobs import quiet
from tests.autotune.trial import processes, workloads
from tests.testing import runs

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks"),
]

TOGETHER = Configuration(micro_batch_size=2, accumulation_steps=2, world_size=2)
LOCAL = Configuration(micro_batch_size=2, accumulation_steps=2, world_size=2, local_sgd_steps=3)
LIMIT_BYTES = 1 << 40


class Group:
    """A group that can be asked with few words."""

    def __init__(self, spec: WorkloadSpec, place: Path) -> None:
        self.place = place
        self.group = RankGroup(
            processes.options(spec, place),
            processes.environment(),
            place / "worker.log",
            Ranks(num_processes=2),
        )
        self.progress: list[Progress] = []
        ready = self.group.wait_ready(time_limit_s=processes.LOAD_LIMIT_S)
        assert isinstance(ready, Ready), ready
        self.ready = ready

    def ask(self, command: Command, *, limit_s: float = 120.0, name: str = "trial") -> GroupReply:
        return self.group.ask(
            command,
            log=self.place / name / "output.log",
            time_limit_s=limit_s,
            on_progress=self.progress.append,
        )

    def processes(self) -> list[psutil.Process]:
        return processes.forks_of(self.group._process.pid)

    def workers(self) -> dict[int, psutil.Process]:
        """The worker of each rank: a child of the rank's supervisor."""
        found = {}
        for process in self.processes():
            parent = process.parent()
            rank = parent.environ().get("RANK") if parent is not None else None
            if rank is not None:
                found[int(rank)] = process
        return found


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> WorkloadSpec:
    return workloads.causal_spec(tmp_path_factory.mktemp("job"), 24)


@pytest.fixture(scope="module")
def group(spec: WorkloadSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    group = Group(spec, tmp_path_factory.mktemp("group"))
    yield group
    left = group.processes()
    group.group.close()
    assert processes.wait_for(lambda: not any(p.is_running() for p in left))


def speed_of(reply: GroupReply) -> SpeedMeasured:
    assert isinstance(reply, SpeedMeasured), reply
    return reply


def measure(configuration: Configuration, **options: object) -> MeasureSpeed:
    return MeasureSpeed(
        configuration=configuration,
        min_steps=2,
        max_steps=2,
        max_seconds=60.0,
        num_warmup_steps=0,
        **options,  # type: ignore[arg-type]
    )


def test_the_ranks_load_the_job_and_wait(group: Group) -> None:
    assert group.ready.facts.num_rows == 24
    assert group.workers().keys() == {0, 1}


def test_together_they_train_as_one_process_does(
    group: Group, spec: WorkloadSpec, tmp_path: Path
) -> None:
    found = speed_of(group.ask(measure(TOGETHER, with_exchange=True, with_phases=False)))
    assert found.speed is not None
    assert found.speed.step_samples == (8, 8)
    alone = Configuration(micro_batch_size=2, accumulation_steps=4)
    with quiet():
        stepper = make_stepper(
            workloads.loaded(spec, tmp_path),
            alone,
            driver="trainer",
            output_dir=str(tmp_path),
            repair_loss=False,
        )
        losses = [float(train_window(stepper, stepper.next_window())) for _ in found.speed.losses]
        tokens = stepper.workload.count_tokens
        first = sum(tokens(batch) for batch in stepper.next_window())
    assert found.speed.losses == pytest.approx(losses, rel=1e-4)
    assert first > 0


def test_what_they_exchange_is_told_apart(group: Group) -> None:
    exchange = speed_of(group.ask(measure(TOGETHER, with_exchange=True))).exchange
    assert exchange is not None
    assert exchange.averaging_bytes == group.ready.facts.parameter_bytes
    assert exchange.compute_s > 0
    assert exchange.exposed_s == pytest.approx(
        max(0.0, exchange.ddp_step_s - exchange.compute_s), abs=1e-9
    )
    # The Trainer counts the labels of all ranks before every step.
    assert exchange.num_collectives_per_step >= 1
    assert any(name.startswith("all_gather") for name in exchange.collectives)
    assert {p.stage for p in group.progress} >= {"speed", "exchange", "phases"}


def test_the_link_between_them_is_measured_on_the_spot(group: Group) -> None:
    reply = group.ask(MeasureLink(num_ranks=2, payload_bytes=2**20, measuring_s=1.0))
    assert isinstance(reply, LinkMeasured), reply
    link = link_of(reply.said, Ranks(num_processes=2), runs.machine(), num_threads=1)
    assert link.backend == "gloo"
    assert link.sizes()[0].num_bytes == 1024
    assert link.barrier_s is not None
    assert 0 < link.latency_s < 10
    assert [pair.ranks for pair in link.pairs] == [(0, 1)]
    assert not [finding for finding in link.findings if finding.is_problem]


def test_local_sgd_is_timed_in_whole_rounds_and_ranks_drift_apart_meanwhile(group: Group) -> None:
    found = speed_of(group.ask(measure(LOCAL, with_phases=False)))
    assert found.speed is not None
    assert len(found.speed.step_times_s) == 3
    assert found.exchange is None
    # Each rank went its own way for one round, and both came to the same mean.
    assert found.distances is not None
    (apart,), (moved,) = found.distances.apart_squared, found.distances.moved_squared
    assert apart > 0
    assert moved > 0


def test_each_rank_holds_its_gradients_twice_for_the_exchange(group: Group) -> None:
    reply = group.ask(
        MeasureMemory(configuration=TOGETHER, limit_bytes=LIMIT_BYTES, evaluation_batch_size=4)
    )
    assert isinstance(reply, MemoryMeasured), reply
    assert reply.interlude is not None
    assert reply.interlude.faults == ()
    assert reply.interlude.is_saved
    assert reply.interlude.evaluation_bytes is not None
    parameters = group.ready.facts.parameter_bytes
    # Weights, two moments, gradients, and the buckets in which gradients travel.
    assert reply.memory.allocated_bytes > 5 * parameters
    local = group.ask(MeasureMemory(configuration=LOCAL, limit_bytes=LIMIT_BYTES))
    assert isinstance(local, MemoryMeasured), local


def test_memory_that_runs_out_is_the_outcome_of_all_and_they_live_on(group: Group) -> None:
    command = MeasureMemory(configuration=TOGETHER, limit_bytes=group.ready.level_bytes + 100_000)
    reply = group.ask(command)
    assert isinstance(reply, OutOfMemory), reply
    assert reply.cause.startswith("On rank ")
    assert reply.is_certain
    workers = group.workers()
    speed_of(group.ask(measure(TOGETHER, with_phases=False)))
    assert group.workers() == workers


def _long() -> MeasureSpeed:
    return MeasureSpeed(
        configuration=TOGETHER, min_steps=100_000, max_steps=100_000, max_seconds=600.0
    )


def _interrupt(group: Group, rank: int, number: signal.Signals) -> None:
    """Signals the measuring process of a rank as soon as it measures."""
    fork = processes.forks_of(group.workers()[rank].pid)[-1]
    fork.send_signal(number)


def _ask_and_interrupt(
    group: Group, rank: int, number: signal.Signals, *, limit_s: float
) -> GroupReply:
    is_done = False

    def on_progress(progress: Progress) -> None:
        nonlocal is_done
        if progress.stage == "speed" and not is_done:
            is_done = True
            _interrupt(group, rank, number)

    return group.group.ask(
        _long(),
        log=group.place / "long" / "output.log",
        time_limit_s=limit_s,
        on_progress=on_progress,
    )


def _assert_killed(reply: GroupReply) -> str:
    """That it was killed, and by whom where the kernel counts its own kills; its cause."""
    if read_memory_kills() is None:
        assert isinstance(reply, OutOfMemory), reply
        assert not reply.is_certain
    else:
        assert isinstance(reply, Failed), reply
        assert reply.is_killed
    return reply.cause


def test_a_rank_killed_in_the_middle_ends_the_trial_of_all(group: Group) -> None:
    reply = _ask_and_interrupt(group, 1, signal.SIGKILL, limit_s=120.0)
    assert _assert_killed(reply).startswith("On rank 1: ")
    speed_of(group.ask(measure(TOGETHER, with_phases=False)))


def test_a_rank_that_hangs_is_ended_at_the_time_limit(group: Group) -> None:
    reply = _ask_and_interrupt(group, 1, signal.SIGSTOP, limit_s=4.0)
    assert isinstance(reply, TimedOut), reply
    assert reply.limit_s == 4.0
    # Every rank gets a new worker, and the group goes on.
    speed_of(group.ask(measure(TOGETHER, with_phases=False)))


def test_what_the_ranks_print_goes_to_a_file_of_each(group: Group) -> None:
    group.ask(measure(TOGETHER, with_phases=False), name="printed")
    assert (group.place / "printed" / "output.log").is_file()
    assert (group.place / "printed" / "output-rank1.log").is_file()


def test_a_group_ends_with_a_rank_and_leaves_nothing_behind(group: Group) -> None:
    supervisor = group.workers()[1].parent()
    assert supervisor is not None
    left = group.processes()
    directory = group.group._directory
    supervisor.kill()
    _assert_killed(group.ask(measure(TOGETHER, with_phases=False)))
    assert not group.group.is_alive
    assert processes.wait_for(lambda: not any(p.is_running() for p in left))
    assert not directory.exists()


def test_a_stop_is_heeded_while_the_ranks_load(spec: WorkloadSpec, tmp_path: Path) -> None:
    group = RankGroup(
        processes.options(spec, tmp_path),
        processes.environment(),
        tmp_path / "worker.log",
        Ranks(num_processes=2),
    )
    reply = group.wait_ready(time_limit_s=60.0, should_stop=lambda: "Enough.")
    assert reply == Stopped(cause="Enough.")
    assert not group.is_alive
