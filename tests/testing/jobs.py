"""Small real jobs as requests, and a way to prepare and search them in this process."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.folding import fold
from autotune.goal import Budget, Goal
from autotune.journal import Journal
from autotune.request import Request
from autotune.run_directory import RunDirectory
from autotune.search.engine import Engine, Limits
from autotune.search.evidence.history import History
from autotune.search.preparation import Prepared, prepare_job
from autotune.search.session import Session
from autotune.search.strategy import make_strategy
from autotune.view import RunView
from autotune.workload.spec import Columns, WorkloadSpec
from tests.testing import tiny_models


def classifier(
    directory: Path, *, num_rows: int = 40, family: str = "bert", streaming: bool = False
) -> WorkloadSpec:
    """A two-layer classifier on short texts."""
    place = directory / family
    model = tiny_models.gpt2(place) if family == "gpt2" else tiny_models.bert(place)
    rows = [(tiny_models.TEXTS[i % len(tiny_models.TEXTS)], i % 2) for i in range(num_rows)]
    data = directory / ("rows.jsonl" if streaming else "rows.csv")
    if streaming:
        data.write_text("".join(json.dumps({"text": t, "label": n}) + "\n" for t, n in rows))
    else:
        with data.open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    return WorkloadSpec(
        task="sequence-classification",
        model_config=str(model),
        dataset=str(data),
        columns=Columns(text="text", label="label"),
        streaming=streaming,
        max_length=16,
    )


def language_model(directory: Path, *, num_rows: int = 40) -> WorkloadSpec:
    """A two-layer GPT-2 on short texts."""
    model = tiny_models.gpt2(directory / "gpt2", with_pad=True)
    data = directory / "texts.txt"
    texts = [tiny_models.TEXTS[i % len(tiny_models.TEXTS)] for i in range(num_rows)]
    data.write_text("\n".join(texts) + "\n")
    return WorkloadSpec(
        task="causal-lm",
        model_config=str(model),
        dataset=str(data),
        columns=Columns(text="text"),
        max_length=16,
    )


def request(
    spec: WorkloadSpec,
    directory: Path,
    *,
    global_batch_size: int = 8,
    micro_batch_size: int | None = None,
    memory_limit_bytes: int | None = None,
    trials: int = 40,
    seconds: float = 300.0,
) -> Request:
    """A request for a job; timed parts are as short as they get."""
    return Request(
        workload=spec,
        goal=Goal(global_batch_size=global_batch_size, memory_limit_bytes=memory_limit_bytes),
        budget=Budget(trials=trials, seconds=seconds),
        baseline_micro_batch_size=micro_batch_size,
        working_directory=str(directory),
    )


@dataclass
class Searched:
    """A job after its search, its workers still there."""

    session: Session
    job: Prepared
    engine: Engine
    reason: str

    @property
    def history(self) -> History:
        """Its trials."""
        return self.engine.history

    @property
    def view(self) -> RunView:
        """The run as its journal tells it."""
        return fold(self.session.journal.records)


@contextmanager
def searched(asked: Request, directory: Path) -> Iterator[Searched]:
    """Prepares a request and searches it; confirmation and export are left out."""
    run = RunDirectory(directory / "run")
    run.create()
    with Journal(run.journal, run.progress) as journal:
        session = Session(run, journal, seconds=asked.budget.seconds)
        with prepare_job(session, asked) as job:
            assert job is not None
            history = History(
                space=job.space, usable_bytes=job.usable_bytes, gradient_bytes=job.gradient_bytes
            )
            engine = Engine(session, job.pool, history, job.plan)
            if job.foresight is not None:
                engine.foresee(job.foresight)
            strategy = make_strategy(
                asked, session, engine.history, digest=job.digest, machine=job.machine.likeness
            )
            limits = Limits(num_trials=asked.budget.trials, reserve_s=lambda history: 0.0)
            reason = engine.search(strategy, limits)
            yield Searched(session, job, engine, reason)


def outcomes(history: History, sizes: Sequence[int]) -> dict[int, str]:
    """Outcome kind by micro-batch size, checkpointing off."""
    return {
        t.configuration.micro_batch_size: t.outcome.kind
        for t in history.trials
        if t.configuration.micro_batch_size in sizes and not t.configuration.checkpointing.is_on
    }
