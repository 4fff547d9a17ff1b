"""An engine that is real but for its workers: they answer from a made-up landscape.

`python -m tests.testing.landscape_engine RUN_DIRECTORY` searches and ends. The request in the
directory says how; trials take `AUTOTUNE_TEST_TRIAL_S` seconds, or less where somebody ends them,
and `AUTOTUNE_TEST_MACHINE` is what must be equal for machines to be alike.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from autotune import request as requests
from autotune import storage_url
from autotune.events import RunEnded
from autotune.folding import fold
from autotune.goal import Budget
from autotune.journal import Journal, read
from autotune.outcome import Measured, Outcome, Stopped
from autotune.request import Request, SamplerName
from autotune.run_directory import RunDirectory
from autotune.search import strategy as strategies
from autotune.search.engine import Engine, Limits
from autotune.search.evidence.history import History
from autotune.search.session import Session
from autotune.search.studies.heartbeat import Patience
from autotune.search.studies.study import Study
from autotune.search.trials import TrialPlan
from autotune.starting import engine_environment
from autotune.trial.pool import WorkerPool
from autotune.trial.protocol import Command, MeasureMemory, MemoryMeasured, SpeedMeasured
from autotune.view import RunView
from autotune.workload.spec import WorkloadSpec
from tests.testing import runs
from tests.testing.studies import LANDSCAPE


class LandscapePool:
    """Answers as workers do, after some time."""

    is_on_device = False
    cold_start_s = 0.1

    def __init__(self, trial_s: float) -> None:
        self._trial_s = trial_s

    def check_nodes(self) -> None:
        """Every machine is there."""

    def num_local_ranks(self, num_ranks: int) -> int:
        return num_ranks

    def ask(
        self,
        command: Command,
        *,
        log: Path,
        time_limit_s: float,
        on_progress: object = None,
        should_stop: Callable[[], str | None] = lambda: None,
    ) -> object:
        outcome: Outcome = LANDSCAPE.outcome(command.configuration)  # type: ignore[union-attr]
        if isinstance(command, MeasureMemory):
            end_s = time.monotonic() + self._trial_s
            while time.monotonic() < end_s and not _is_ended(log.parents[2]):
                reason = should_stop()
                if reason is not None:
                    return Stopped(cause=reason)
                time.sleep(0.01)
            if not isinstance(outcome, Measured):
                return outcome
            return MemoryMeasured(memory=outcome.memory, steps_s=self._trial_s)
        assert isinstance(outcome, Measured)
        return SpeedMeasured(speed=outcome.speed, phases=None, steps_s=0.0)


def _is_ended(run: Path) -> bool:
    return (run / "end-trials").exists()


def main(run: RunDirectory) -> None:
    request = requests.load(run)
    storage = storage_url.with_password(request.storage, os.environ)
    with Journal(run.journal, run.progress) as journal:
        session = Session(run, journal, seconds=request.budget.seconds)
        session.handle_signals()
        session.emit(runs.started(run.name, request))
        history = History(space=LANDSCAPE.space, usable_bytes=LANDSCAPE.usable_bytes)
        pool = cast("WorkerPool", LandscapePool(float(os.environ["AUTOTUNE_TEST_TRIAL_S"])))
        engine = Engine(session, pool, history, TrialPlan(limit_bytes=10**12))
        patient = partial(
            Study, patience=Patience(beat_s=1.0, grace_s=60.0, return_s=0.2, retry_s=0.2)
        )
        vars(strategies)["Study"] = patient
        strategy = strategies.make_strategy(
            Request(
                workload=request.workload,
                sampler=request.sampler,
                budget=request.budget,
                storage=storage,
            ),
            session,
            history,
            digest="job",
            machine=os.environ["AUTOTUNE_TEST_MACHINE"],
        )
        limits = Limits(num_trials=request.budget.trials, reserve_s=lambda history: 0.0)
        reason = engine.search(strategy, limits)
        session.emit(RunEnded(reason=reason, exit_code=0))


@dataclass
class Process:
    """A started engine, and what its journal tells."""

    run: RunDirectory
    process: subprocess.Popen[bytes]

    @property
    def view(self) -> RunView:
        return fold(read(self.run.journal))

    def events(self, kind: str) -> list[object]:
        return [r.event for r in read(self.run.journal) if r.event.kind == kind]

    def wait_for(self, holds: Callable[[RunView], bool], limit_s: float = 60.0) -> RunView:
        deadline_s = time.monotonic() + limit_s
        while not holds(view := self.view):
            assert time.monotonic() < deadline_s, view
            assert self.process.poll() is None or holds(self.view), self.log
            time.sleep(0.02)
        return view

    def wait_until(self, holds: Callable[[], bool], limit_s: float = 60.0) -> None:
        self.wait_for(lambda view: holds(), limit_s)

    def end_trials(self) -> None:
        """Trials take no time from now on."""
        (self.run.path / "end-trials").touch()

    def wait(self, limit_s: float = 90.0) -> RunView:
        assert self.process.wait(timeout=limit_s) == 0, self.log
        return self.view

    @property
    def log(self) -> str:
        return self.run.engine_log.read_text()


def start(
    directory: Path,
    storage: str,
    *,
    sampler: SamplerName = "grid",
    trial_s: float = 0.1,
    trials: int = 100,
    seconds: float = 60.0,
    machine: str = "m",
    environment: Mapping[str, str] = os.environ,
) -> Process:
    """Starts an engine; all are called "job", as runs of the same job on several machines are."""
    run = RunDirectory(directory / "job")
    run.create()
    request = Request(
        workload=WorkloadSpec(task="causal-lm", demo=True),
        sampler=sampler,
        storage=storage,
        budget=Budget(trials=trials, seconds=seconds),
    )
    requests.save(request, run)
    with run.engine_log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.testing.landscape_engine", str(run.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).parents[2],
            env=engine_environment(request, environment)
            | {"AUTOTUNE_TEST_TRIAL_S": str(trial_s), "AUTOTUNE_TEST_MACHINE": machine},
        )
    return Process(run=run, process=process)


if __name__ == "__main__":
    main(RunDirectory(Path(sys.argv[1])))
