"""Supervisors of two ranks over a store in memory, with workers that only remember."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from autotune.outcome import Stopped
from autotune.trial.protocol import CannotLoad, Command, Envelope, Ready, Reply
from autotune.trial.ranks import supervisor as module
from autotune.trial.ranks.agreement import RankReply
from autotune.trial.ranks.place import Place
from autotune.trial.ranks.supervisor import Supervisor
from autotune.workload.spec import WorkloadSpec
from tests.autotune.trial import processes
from tests.autotune.trial.fake_worker import measured, ready
from tests.autotune.trial.lines import memory_command

MEETING = "command-1"


class Worker:
    """Loads when it may, and is asked."""

    may_load = threading.Event()
    error: CannotLoad | None = None
    asked: list[Worker]

    def __init__(self, *arguments: object) -> None:
        self.is_alive = True

    def wait_ready(self, *, time_limit_s: float) -> Ready:
        assert type(self).may_load.wait(30)
        error = type(self).error
        if error is not None:
            raise error.exception
        return ready()

    def ask(self, command: Command, **options: object) -> Reply:
        type(self).asked.append(self)
        return measured()

    def close(self) -> None:
        self.is_alive = False


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Supervisor]]:
    """Two ranks; the worker of the second has ended."""
    store = HashStore()
    Worker.asked, Worker.error, Worker.may_load = [], None, threading.Event()
    monkeypatch.setattr(module, "Worker", Worker)
    monkeypatch.setattr(Place, "store", lambda *arguments: store)
    options = processes.options(WorkloadSpec(task="causal-lm"), tmp_path)
    made = [
        Supervisor(
            Place(
                rank=rank,
                local_rank=rank,
                world_size=2,
                local_world_size=2,
                address="nowhere",
                port=1,
            ),
            options,
            {},
            tmp_path / "log",
        )
        for rank in range(2)
    ]
    made[1].close()
    yield made
    Worker.may_load.set()


def answering(ranks: list[Supervisor]) -> tuple[list[threading.Thread], dict[int, RankReply]]:
    """Has each rank answer in a thread, and say so, as the loops of the ranks do."""
    replies: dict[int, RankReply] = {}

    def answer(rank: int) -> None:
        envelope = Envelope(body=memory_command(), time_limit_s=0.01)
        replies[rank] = ranks[rank].answered(envelope, MEETING, None)
        ranks[rank].tell(MEETING, replies[rank])

    threads = [threading.Thread(target=answer, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    return threads, replies


def test_no_rank_begins_before_all_have_loaded_again(ranks: list[Supervisor]) -> None:
    threads, replies = answering(ranks)
    threads[0].join(0.3)
    assert Worker.asked == [], "the time of the command has not begun"
    Worker.may_load.set()
    for thread in threads:
        thread.join(30)
    assert len(Worker.asked) == 2
    assert replies == {0: measured(), 1: measured()}


def test_a_rank_that_cannot_load_again_calls_the_others_off(ranks: list[Supervisor]) -> None:
    Worker.error = CannotLoad(error="WorkloadError", cause="It is gone.", remedy=None)
    Worker.may_load.set()
    threads, replies = answering(ranks)
    for thread in threads:
        thread.join(30)
    assert Worker.asked == []
    assert replies[1] == Worker.error
    assert replies[0] == Stopped(cause="Another rank could not go on.")
    assert ranks[0].gathered(MEETING, 5.0) == CannotLoad(
        error="WorkloadError", cause="It is gone.", remedy=None
    )
