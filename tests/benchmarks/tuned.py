"""One real run, from request to exported files, that several benchmarks look at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from autotune import request as requests
from autotune import starting
from autotune.delivery import bundle_of
from autotune.errors import AutotuneError
from autotune.export.bundle import Bundle
from autotune.folding import fold
from autotune.goal import Budget, Goal
from autotune.journal import Journal, read
from autotune.planning import machine_of
from autotune.request import Driver, Request
from autotune.run_directory import RunDirectory
from autotune.search.preparation import worker_pool
from autotune.search.session import Session
from autotune.trial.pool import WorkerPool
from autotune.view import RunView
from tests.benchmarks.harness import Context, say
from tests.benchmarks.jobs import QUICK_GLOBAL_BATCH_SIZE, REVIEWS

FULL_BUDGET = Budget(trials=32, seconds=300.0)
QUICK_BUDGET = Budget(trials=2, seconds=900.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedRun:
    """A finished run and what it exported."""

    run: RunDirectory
    request: Request
    view: RunView
    bundle: Bundle

    @property
    def out(self) -> Path:
        """Where its files are."""
        return self.run.out

    def reading(self, path: str) -> float:
        """A figure of the recommendation's readings, such as `memory.total_bytes`."""
        answer = self.bundle.document["recommendation"]
        assert isinstance(answer, dict)
        value = answer["measured"]
        for name in path.split("."):
            assert isinstance(value, dict)
            value = value[name]
        assert isinstance(value, int | float)
        return float(value)


@cache
def tuned_run(context: Context) -> TunedRun:
    """Tunes MiniLM on reviews in an engine of its own, once for all that ask.

    Raises:
        AutotuneError: The run did not end with a recommendation.
    """
    request = Request(
        workload=REVIEWS.spec(),
        goal=Goal(
            global_batch_size=QUICK_GLOBAL_BATCH_SIZE
            if context.quick
            else REVIEWS.global_batch_size
        ),
        budget=QUICK_BUDGET if context.quick else FULL_BUDGET,
        parent_process=os.getpid(),
    )
    say(f"tunes {REVIEWS.title}")
    run = starting.prepare(request, context.directory, "reviews", fresh=True, resume=False)
    with starting.start_engine(run) as engine:
        try:
            engine.wait()
        except BaseException:
            engine.terminate()
            raise
    view = fold(read(run.journal))
    if view.recommendation is None or view.exported is None:
        ended = view.ended
        raise AutotuneError(
            f"The run ended without exported files: {ended.cause or ended.reason}"
            if ended is not None
            else f"The engine ended with exit code {engine.returncode}.",
            ended.remedy if ended is not None else None,
        )
    return TunedRun(run=run, request=requests.load(run), view=view, bundle=bundle_of(run))


@contextmanager
def workers(tuned: TunedRun, context: Context, driver: Driver) -> Iterator[WorkerPool]:
    """Workers for trials of a finished run, in the environment of its trials."""
    run = RunDirectory(context.directory / f"again-{driver}")
    run.create()
    assert tuned.view.workload is not None, "the run has a recommendation"
    request = replace(tuned.request, driver=driver)
    with Journal(run.journal, run.progress) as journal:
        session = Session(run, journal, seconds=request.budget.seconds)
        environment = tuned.view.workload.environment
        with worker_pool(session, request, machine_of(tuned.view), environment) as pool:
            yield pool
