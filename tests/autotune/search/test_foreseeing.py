"""Predictions inside the search, on real jobs: what is told, what never runs, what is left open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import Trainer

from autotune import control
from autotune.advice.nothing import nothing_fits
from autotune.configuration import Configuration
from autotune.events import MemoryForeseen, RegionClosed, TrialFinished, TrialStarted
from autotune.goal import Budget, usable_bytes
from autotune.library.call import _capsule
from autotune.outcome import Measured, OutOfMemory
from autotune.request import Request
from autotune.run_directory import RunDirectory
from autotune.trial.protocol import AwaitBeside, StartBeside
from autotune.view import bytes_of
from autotune.workload.live.capture import FILE_NAME, capture
from autotune.workload.live.job import job_of_trainer
from autotune.workload.spec import WorkloadSpec
from tests.testing import jobs, live

pytestmark = pytest.mark.long
GLOBAL_BATCH = 64
VOCABULARY = 12_000


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def wide(directory: Path, num_rows: int = 128) -> WorkloadSpec:
    """A small language model with a large head: what it needs grows with the micro-batch."""
    spec = jobs.language_model(directory, num_rows=num_rows)
    file = next((directory / "gpt2").glob("config.json"))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"vocab_size": VOCABULARY}))
    return spec


def limit_for(usable: int) -> int:
    """The limit of which so much may be filled."""
    limit = round(usable / 0.95)
    while usable_bytes(limit, on_device=False) < usable:
        limit += 1
    return limit


def predictions(event: MemoryForeseen) -> dict[Configuration, int]:
    found = {}
    for candidate in event.candidates:
        configuration, predicted = candidate["configuration"], candidate["predicted"]
        assert isinstance(configuration, dict)
        assert isinstance(predicted, dict)
        need = bytes_of(predicted)
        assert need is not None
        found[Configuration.from_json(configuration)] = need
    return found


def events(run: jobs.Searched, kind: str) -> list[object]:
    return [r.event for r in run.session.journal.records if r.event.kind == kind]


def foreseen(run: jobs.Searched) -> MemoryForeseen:
    (event,) = events(run, "memory_foreseen")
    assert isinstance(event, MemoryForeseen)
    return event


def test_a_limit_rules_out_what_the_law_says_and_no_trial_runs_out_of_memory(
    tmp_path: Path,
) -> None:
    spec = wide(tmp_path)
    first = jobs.request(spec, tmp_path, global_batch_size=GLOBAL_BATCH, trials=1)
    (tmp_path / "a").mkdir()
    with jobs.searched(first, tmp_path / "a") as run:
        event = foreseen(run)
        needs = predictions(event)
        assert not event.from_store
        assert event.untraced == ()
        assert set(needs) == set(run.job.space.candidates)
        assert run.history.regions == ()
    plain = {c.micro_batch_size: n for c, n in needs.items() if not c.checkpointing.is_on}
    assert sorted(plain) == [1, 2, 4, 8, 16, 32, 64]

    # Half-way between what 16 and what 32 rows need.
    limit = limit_for((plain[16] + plain[32]) // 2)
    asked = jobs.request(
        spec, tmp_path, global_batch_size=GLOBAL_BATCH, memory_limit_bytes=limit, trials=5
    )
    (tmp_path / "b").mkdir()
    with jobs.searched(asked, tmp_path / "b") as run:
        assert foreseen(run).from_store, "the same job is traced once"
        closed = {c for region in run.history.regions for c in region.configurations}
        assert {c.micro_batch_size for c in closed} == {32, 64}
        told = [e for e in events(run, "region_closed") if isinstance(e, RegionClosed)]
        assert all(e.trial is None and e.reason.startswith("predicted to need") for e in told)
        trials = run.history.trials
        assert len(trials) >= 4
        assert all(isinstance(t.outcome, Measured) for t in trials), "none ran out of memory"
        assert not {t.configuration for t in trials} & closed
        started = [e for e in events(run, "trial_started") if isinstance(e, TrialStarted)]
        finished = [e for e in events(run, "trial_finished") if isinstance(e, TrialFinished)]
        assert [e.predicted for e in started] == [e.predicted for e in finished]
        for ended in finished:
            predicted = bytes_of(ended.predicted)
            assert isinstance(ended.outcome, Measured)
            memory = ended.outcome.memory
            assert predicted == pytest.approx(memory.total_bytes, rel=0.005)
            # The process apart, it is still as close: 450 MiB of it would hide much.
            inside = (predicted or 0) - memory.outside_bytes
            assert inside == pytest.approx(memory.reserved_bytes, rel=0.01)


def test_where_everything_is_ruled_out_the_least_is_run_to_prove_it(tmp_path: Path) -> None:
    spec = wide(tmp_path, num_rows=160)
    first = jobs.request(spec, tmp_path, global_batch_size=GLOBAL_BATCH, trials=1)
    (tmp_path / "a").mkdir()
    with jobs.searched(first, tmp_path / "a") as run:
        needs = predictions(foreseen(run))
    least = min(needs, key=lambda c: needs[c])
    limit = limit_for(needs[least] - 2**20)
    asked = jobs.request(spec, tmp_path, global_batch_size=GLOBAL_BATCH, memory_limit_bytes=limit)
    (tmp_path / "b").mkdir()
    with jobs.searched(asked, tmp_path / "b") as run:
        (trial,) = run.history.trials
        assert trial.configuration == least
        assert isinstance(trial.outcome, OutOfMemory)
        assert run.history.open_candidates == ()
        cause, remedy = nothing_fits(run.history, run.job.usable_bytes)
        others = len(needs) - 1
        assert f"{others} are predicted not to fit and were not run" in cause
        assert f"The nearest was {least}, which is predicted to need" in remedy


class Picky(Trainer):  # type: ignore[misc]
    """Weighs its loss with how many parts of it are not zero, which only a real run knows."""

    def compute_loss(self, model, inputs, *args, **kwargs):  # type: ignore[no-untyped-def]
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        return loss * loss.detach().reshape(1).nonzero().numel()


def test_what_cannot_be_traced_is_said_once_and_left_to_trials(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path, kind=Picky)
    run_path = RunDirectory(tmp_path / "run").workload
    run_path.mkdir(parents=True)
    job = job_of_trainer(trainer)
    capture(job, run_path / FILE_NAME)
    asked = Request(
        workload=_capsule(job, 1),
        budget=Budget(trials=2, seconds=300.0),
        working_directory=str(tmp_path),
    )
    with jobs.searched(asked, tmp_path) as run:
        event = foreseen(run)
        assert event.candidates == ()
        reasons = [str(u["reason"]) for u in event.untraced]
        assert reasons
        assert "nonzero" in reasons[0]
        assert run.job.foresight is None or run.history.need(run.job.space.baseline) is None
        assert len(run.history.measured) == 2
        started = [e for e in events(run, "trial_started") if isinstance(e, TrialStarted)]
        assert [e.predicted for e in started] == [None, None]


def test_work_beside_ends_with_its_time_and_leaves_the_worker_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The worker takes a module of the tests in.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    asked = jobs.request(jobs.classifier(tmp_path), tmp_path, trials=1)
    run = RunDirectory(tmp_path / "run")
    with jobs.searched(asked, tmp_path) as searched:
        pool = searched.job.pool
        before = pool.ready()

        def ask(module: str, limit_s: float = 60.0) -> object:
            pool.ask(
                StartBeside(module=module, document={}), log=run.path / "b.log", time_limit_s=60.0
            )
            return pool.ask(
                AwaitBeside(time_limit_s=limit_s), log=run.path / "b.log", time_limit_s=90.0
            )

        slow = ask("tests.testing.beside_slow", 0.2)
        assert getattr(slow, "cause", "") == "It took longer than 0.2 s."
        broken = ask("tests.testing.no_such_module")
        assert "no_such_module" in getattr(broken, "cause", "")
        assert pool.ready() == before, "the same worker"
        control.send(run.control, "stop_now", "SIGTERM")
