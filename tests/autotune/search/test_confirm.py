"""Confirmation against made-up processes: who is there while what is measured, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from autotune.configuration import Configuration
from autotune.errors import WorkloadError
from autotune.events import Confirmed
from autotune.folding import fold
from autotune.journal import Journal
from autotune.outcome import Measured, Stopped
from autotune.run_directory import RunDirectory
from autotune.search.confirm import confirm, steps_per_block
from autotune.search.engine import Engine
from autotune.search.evidence.closing import with_trials
from autotune.search.evidence.finished import FinishedTrial
from autotune.search.evidence.history import History
from autotune.search.session import Session, StopKind
from autotune.search.trials import TrialPlan
from autotune.trial.pool import WorkerPool
from autotune.trial.protocol import (
    ContinueSpeed,
    MeasureMemory,
    MemoryMeasured,
    OpenSpeed,
    SpeedMeasured,
)
from tests.testing.landscapes import MIB, make_space, measured

SPACE = make_space(24)
SLOW, FAST = (
    c for c in SPACE.candidates if c.micro_batch_size in (8, 12) and not c.checkpointing.is_on
)
STEP_S = {SLOW: 0.5, FAST: 0.4}
BYTES = {SLOW: 300 * MIB, FAST: 500 * MIB}


class Process:
    """A worker that holds memory from its first command to its end."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.held_bytes = 0
        self.configuration: Configuration | None = None

    def ask(self, command: object, **options: object) -> object:
        match command:
            case MeasureMemory(configuration=configuration):
                beside = sum(p.held_bytes for p in self.pool.processes) - self.held_bytes
                self.held_bytes = BYTES[configuration]
                # What is free is all that a device tells of what stands outside the allocator.
                seen = self.held_bytes + (beside if self.pool.is_on_device else 0)
                return MemoryMeasured(
                    memory=measured([1.0], 24, seen).memory,
                    steps_s=0.0,
                )
            case OpenSpeed(configuration=configuration):
                self.pool.on_block.get(0, lambda: None)()
                self.configuration = configuration
                self.held_bytes = BYTES[configuration]
                return SpeedMeasured(speed=None, phases=None, steps_s=0.0)
            case ContinueSpeed(num_steps=num):
                assert self.configuration is not None
                self.pool.num_blocks += 1
                self.pool.on_block.get(self.pool.num_blocks, lambda: None)()
                if self.configuration == self.pool.unwanted:
                    return Stopped(cause="Stopped by request; the run goes on.")
                speed = measured([STEP_S[self.configuration]] * num, 24, 1).speed
                return SpeedMeasured(speed=speed, phases=None, steps_s=0.0)
            case _:
                raise AssertionError(command)

    def close(self) -> None:
        self.held_bytes = 0


class Pool:
    """Launches such processes, and may fail to load one."""

    cold_start_s = 0.0
    options = SimpleNamespace(isolation="inline")

    def __init__(self, *, is_on_device: bool, num_loads: int = 1000) -> None:
        self.is_on_device = is_on_device
        self.unwanted: Configuration | None = None
        """Somebody stops it whenever it is measured."""
        self.num_blocks = 0
        self.on_block: dict[int, Callable[[], None]] = {}
        """What happens while the block of that number is measured; 0 is before the first."""
        warm = Process(self)
        warm.held_bytes = 700 * MIB
        self.processes = [warm]
        self._loads_left = num_loads

    def close(self) -> None:
        """Ends the worker of the search."""
        self.processes[0].close()

    def check_nodes(self) -> None:
        """Every machine is there."""

    def num_local_ranks(self, num_ranks: int) -> int:
        return num_ranks

    def launch(self, num_ranks: int) -> Process:
        self.processes.append(Process(self))
        return self.processes[-1]

    def load(self, process: Process, num_ranks: int) -> Process:
        self._loads_left -= 1
        if self._loads_left < 0:
            raise WorkloadError("The data is gone.", "Bring it back.")
        return process

    def ask(self, *arguments: object, **options: object) -> object:
        raise WorkloadError("The data is gone.", "Bring it back.")


@contextmanager
def engine(place: Path, pool: Pool) -> Iterator[Engine]:
    run = RunDirectory(place / "job")
    run.create()
    history = with_trials(
        History(space=SPACE, usable_bytes=2000 * MIB),
        (
            FinishedTrial(
                number=n,
                purpose="search",
                configuration=c,
                outcome=measured([STEP_S[c]] * 4, 24, BYTES[c]),
            )
            for n, c in enumerate((SLOW, FAST))
        ),
    )
    with Journal(run.journal, run.progress) as journal:
        session = Session(run, journal, seconds=600.0)
        plan = TrialPlan(limit_bytes=2000 * MIB)
        yield Engine(session, cast("WorkerPool", pool), history, plan, next_number=2)


@pytest.mark.parametrize("is_on_device", [False, True])
def test_the_memory_of_one_is_not_counted_for_the_next(tmp_path: Path, is_on_device: bool) -> None:
    pool = Pool(is_on_device=is_on_device)
    with engine(tmp_path, pool) as made:
        verdict = confirm(made, SLOW)
        view = fold(made.session.journal.records)
    assert verdict is not None
    assert verdict.chosen == FAST
    event = verdict.event
    assert isinstance(event, Confirmed)
    assert event.speedup == pytest.approx(1.25)
    assert event.settled
    assert event.memory.total_bytes == BYTES[FAST]
    assert event.baseline_memory is not None
    assert event.baseline_memory.total_bytes == BYTES[SLOW]
    for trial in view.trials:
        assert isinstance(trial.outcome, Measured)
        assert trial.outcome.memory.total_bytes == BYTES[trial.configuration]
    assert all(process.held_bytes == 0 for process in pool.processes), "all were ended"


@pytest.mark.parametrize(("unwanted", "chosen"), [(FAST, SLOW), (SLOW, FAST)])
def test_what_somebody_stops_is_struck_out_and_not_begun_again(
    tmp_path: Path, unwanted: Configuration, chosen: Configuration
) -> None:
    pool = Pool(is_on_device=False)
    pool.unwanted = unwanted
    with engine(tmp_path, pool) as made:
        verdict = confirm(made, SLOW)
        view = fold(made.session.journal.records)
    assert verdict is not None
    assert verdict.chosen == chosen
    assert [t.configuration for t in view.trials if t.measured is not None] == [chosen]
    assert len(view.trials) == 3, "both, and then the one that is left"
    assert [w.cause for w in view.warnings] == [
        f"Trial {next(t.number for t in view.trials if t.configuration == unwanted)} "
        f"({unwanted}) was stopped."
    ]


def test_a_stop_of_the_run_confirms_nothing(tmp_path: Path) -> None:
    pool = Pool(is_on_device=False)
    pool.unwanted = FAST
    with engine(tmp_path, pool) as made:
        made.session.request_stop("after_trial", "SIGINT")
        assert confirm(made, SLOW) is None
        assert made.session.journal.records == []


@pytest.mark.parametrize(
    ("kind", "block"), [("after_trial", 0), ("after_trial", 3), ("now", 1), ("now", 3)]
)
def test_what_is_stopped_half_way_confirms_nothing(
    tmp_path: Path, kind: StopKind, block: int
) -> None:
    pool = Pool(is_on_device=False)
    with engine(tmp_path, pool) as made:
        pool.on_block = {block: lambda: made.session.request_stop(kind, "SIGINT")}
        assert confirm(made, SLOW) is None
        view = fold(made.session.journal.records)
        assert {t.configuration for t in made.history.measured} == {SLOW, FAST}
    assert view.confirmed is None
    assert [t.outcome for t in view.trials] == [Stopped(cause="The run was stopped meanwhile.")] * 2
    assert pool.num_blocks == block, "the block that runs is the last one"


def test_a_fork_is_timed_for_at_least_as_long_as_it_warms_up() -> None:
    assert steps_per_block(0.1, is_forked=True) == steps_per_block(0.1, is_forked=False) == 10
    assert (steps_per_block(0.8, is_forked=True), steps_per_block(0.8, is_forked=False)) == (2, 1)
    assert steps_per_block(5.0, is_forked=False) == 1


@pytest.mark.parametrize("num_loads", [0, 1, 2, 3])
def test_what_was_begun_gets_an_end_where_the_workload_cannot_be_loaded_again(
    tmp_path: Path, num_loads: int
) -> None:
    pool = Pool(is_on_device=True, num_loads=num_loads)
    with engine(tmp_path, pool) as made:
        with pytest.raises(WorkloadError, match=r"The data is gone\."):
            confirm(made, SLOW)
        view = fold(made.session.journal.records)
        # A run that goes on may confirm the same ones.
        assert {t.configuration for t in made.history.measured} == {SLOW, FAST}
    assert [t.outcome for t in view.trials] == [Stopped(cause="The data is gone.")] * 2
    assert {t.configuration for t in view.trials} == {SLOW, FAST}
    assert view.running is None
    assert all(process.held_bytes == 0 for process in pool.processes)


def test_a_trial_of_the_search_gets_an_end_too(tmp_path: Path) -> None:
    other = next(c for c in SPACE.candidates if c not in (SLOW, FAST))
    with engine(tmp_path, Pool(is_on_device=False)) as made:
        with pytest.raises(WorkloadError, match=r"The data is gone\."):
            made.run(other, "search", "why not")
        view = fold(made.session.journal.records)
    (trial,) = view.trials
    assert (trial.number, trial.configuration) == (2, other)
    assert trial.outcome == Stopped(cause="The data is gone.")
    assert not made.session.in_trial
