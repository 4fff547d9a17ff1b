"""One warm worker after another, against workers that misbehave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.configuration import Configuration
from autotune.errors import WorkloadError
from autotune.outcome import Failed, Stopped, TimedOut
from autotune.run_directory import RunDirectory
from autotune.trial import pool as pool_module
from autotune.trial.client import WorkerDiedError
from autotune.trial.environment import RECORDED_VARIABLES, trial_environment
from autotune.trial.pool import WorkerPool
from autotune.trial.protocol import MeasureMemory, MemoryMeasured, Ready
from autotune.trial.ranks.group import NodeLostError, RanksMissingError
from autotune.workload.spec import WorkloadSpec
from tests.autotune.trial import processes

COMMAND = MeasureMemory(
    configuration=Configuration(micro_batch_size=1, accumulation_steps=1), limit_bytes=1
)
LIMIT_S = 60.0


class Pools:
    """Makes pools of fake workers."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.made: list[WorkerPool] = []
        self.stop: str | None = None
        self._monkeypatch = monkeypatch

    def __call__(
        self, scenario: str, *, device: str = "cpu", isolation: str = "fork"
    ) -> WorkerPool:
        options = processes.options(
            WorkloadSpec(task="causal-lm"),
            self.place,
            isolation="inline" if isolation == "inline" else "fork",
        )
        self.made.append(
            WorkerPool(
                RunDirectory(self.place / "run"),
                options,
                processes.fake(self._monkeypatch, self.place, scenario, device=device),
                lambda: self.stop,
            )
        )
        return self.made[-1]

    def ask(self, pool: WorkerPool, *, time_limit_s: float = LIMIT_S) -> object:
        return pool.ask(COMMAND, log=self.place / "log", time_limit_s=time_limit_s)


@pytest.fixture
def pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pools]:
    made = Pools(tmp_path, monkeypatch)
    yield made
    for pool in made.made:
        pool.close()


def number(reply: object) -> int:
    """Which command of its worker this answers."""
    assert isinstance(reply, MemoryMeasured)
    return reply.memory.total_bytes


def process_of(pool: WorkerPool) -> int:
    ready = pool.ready()
    assert isinstance(ready, Ready)
    return ready.process


def test_the_warm_worker_is_kept(pools: Pools) -> None:
    pool = pools("answers")
    first = process_of(pool)
    assert [number(pools.ask(pool)) for _ in range(2)] == [1, 2]
    assert process_of(pool) == first
    assert pool.num_cold_starts == 1
    assert 0 < pool.cold_start_s < LIMIT_S
    pool.close()
    assert number(pools.ask(pool)) == 1
    assert (pool.num_cold_starts, process_of(pool) == first) == (2, False)


def test_fresh_workers_stand_beside_the_warm_one(pools: Pools) -> None:
    pool = pools("answers")
    warm = process_of(pool)
    fresh = pool.fresh()
    assert not isinstance(fresh, Stopped)
    with fresh:
        assert fresh.ready is not None
        assert fresh.ready.process != warm
        assert not fresh.is_used
    assert process_of(pool) == warm


@pytest.mark.parametrize(
    ("isolation", "scenario", "is_kept"),
    [
        ("fork", "fails", True),
        ("inline", "fails", False),
        ("inline", "answers", True),
        ("inline", "is no longer clean", False),
        ("fork", "crashes", False),
    ],
)
def test_what_replaces_a_worker(pools: Pools, isolation: str, scenario: str, is_kept: bool) -> None:
    pool = pools(scenario, isolation=isolation)
    first = process_of(pool)
    reply = pools.ask(pool)
    assert isinstance(reply, MemoryMeasured | Failed)
    assert (process_of(pool) == first) is is_kept


def test_a_worker_over_its_time_is_replaced(pools: Pools) -> None:
    pool = pools("hangs")
    first = process_of(pool)
    assert isinstance(pools.ask(pool, time_limit_s=0.2), TimedOut)
    assert process_of(pool) != first


def test_a_first_fork_that_hangs_is_done_without_a_fork(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "FIRST_FORK_LIMIT_S", 0.3)
    pool = pools("hangs in a fork")
    assert number(pools.ask(pool)) == 1
    assert pool.options.isolation == "inline"
    assert not pool.is_on_device
    assert (number(pools.ask(pool)), pool.num_cold_starts) == (2, 2)


def test_a_later_fork_may_take_its_time(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pools("answers")
    pools.ask(pool)
    monkeypatch.setattr(pool_module, "FIRST_FORK_LIMIT_S", 0.0)
    assert number(pools.ask(pool)) == 2
    assert pool.options.isolation == "fork"


def test_once_a_fork_has_worked_the_first_of_another_worker_may_take_its_time(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pools("hangs")
    pool._forks_work = True
    monkeypatch.setattr(pool_module, "FIRST_FORK_LIMIT_S", 0.0)
    # It is the trial that takes too long, and nothing else changes for it.
    reply = pools.ask(pool, time_limit_s=0.2)
    assert isinstance(reply, TimedOut)
    assert reply.limit_s == 0.2
    assert pool.options.isolation == "fork"
    answering = pools("answers")
    assert not answering._forks_work
    monkeypatch.setattr(pool_module, "FIRST_FORK_LIMIT_S", 60.0)
    pools.ask(answering)
    assert answering._forks_work


def test_a_short_limit_of_the_first_command_is_its_own(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "FIRST_FORK_LIMIT_S", 0.3)
    pool = pools("hangs in a fork")
    assert isinstance(pools.ask(pool, time_limit_s=0.2), TimedOut)
    assert pool.options.isolation == "fork"


def test_the_device_is_what_the_worker_found(pools: Pools) -> None:
    for device, meant in (("cpu", False), ("cuda:0", True)):
        pool = pools("answers", device=device, isolation="inline")
        pool.ready()
        assert pool.is_on_device is meant


def test_a_stop_is_no_outcome_of_the_next_command(pools: Pools) -> None:
    pool = pools("answers")
    pools.stop = "The budget is spent."
    assert pool.ready() == Stopped(cause="The budget is spent.")
    assert pools.ask(pool) == Stopped(cause="The budget is spent.")
    pools.stop = None
    assert number(pools.ask(pool)) == 1


def test_the_stop_of_one_command_goes_before_that_of_the_run(pools: Pools) -> None:
    pool = pools("answers")
    pool.ready()
    pools.stop = "run"
    log = pools.place / "log"
    reply = pool.ask(COMMAND, log=log, time_limit_s=LIMIT_S, should_stop=lambda: "trial")
    assert reply == Stopped(cause="trial")


def test_changed_options_hold_for_the_workers_to_come(pools: Pools) -> None:
    pool = pools("answers")
    first = process_of(pool)
    pool.change(others_bytes=77)
    assert pool.options.others_bytes == 77
    assert process_of(pool) != first


@pytest.mark.parametrize(
    ("scenario", "error"),
    [("cannot load:WorkloadError", WorkloadError), ("dies loading:3", WorkerDiedError)],
)
def test_what_cannot_be_loaded_is_raised(
    pools: Pools, scenario: str, error: type[Exception]
) -> None:
    pool = pools(scenario)
    ask: Callable[[], object] = pool.ready
    with pytest.raises(error):
        ask()
    with pytest.raises(error):
        pools.ask(pool)
    assert pool.num_cold_starts == 0


def test_the_environment_keeps_what_the_user_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RECORDED_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UNRELATED", "1")
    assert trial_environment(6) == {"OMP_NUM_THREADS": "6"}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("LD_PRELOAD", "libtcmalloc.so")
    assert trial_environment(6) == {"OMP_NUM_THREADS": "3", "LD_PRELOAD": "libtcmalloc.so"}


def test_without_a_lost_node_no_ranks_are_started_again(pools: Pools) -> None:
    pool = pools("answers")
    pool.check_nodes()
    pool._note_lost_node("Node 1 was not heard of for 16 s.")
    with pytest.raises(NodeLostError, match=r"Node 1 was not heard of for 16 s\. Start the same"):
        pool.check_nodes()
    with pytest.raises(NodeLostError):
        pool.launch(2)
    assert NodeLostError("").exit_code == 3
    # What one rank can do goes on.
    assert number(pools.ask(pool)) == 1


def test_nodes_that_do_not_come_together_are_not_waited_for_twice(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pools("answers")
    pool.ready()
    launched: list[int] = []

    class Apart:
        def wait_ready(self, **options: object) -> object:
            raise RanksMissingError("Node 1 did not join within 60 s.")

        def close(self) -> None:
            pass

    def launch(num_ranks: int = 1) -> Apart:
        launched.append(num_ranks)
        return Apart()

    monkeypatch.setattr(pool, "launch", launch)
    for num_nodes, num_launches in ((2, 1), (1, 2)):
        launched.clear()
        pool._num_nodes = num_nodes
        with pytest.raises(RanksMissingError, match="Node 1 did not join"):
            pool.fresh(2)
        assert len(launched) == num_launches
