"""The engine as a process: killed, resumed, finished, and everything it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from autotune import control, lease, starting
from autotune import request as requests
from autotune.errors import UsageError
from autotune.events import NoiseScaleMeasured, Origin, ProbeStarted
from autotune.export.document import read as read_document
from autotune.folding import fold, view_of
from autotune.goal import Goal
from autotune.journal import Journal, read
from autotune.outcome import Failed, Outcome, Stopped
from autotune.run_directory import RunDirectory
from autotune.search.engine import Engine
from autotune.search.evidence.closing import with_trials
from autotune.search.evidence.finished import Arrival, FinishedTrial
from autotune.search.evidence.history import History
from autotune.search.preparation import Prepared
from autotune.search.session import Session
from autotune.search.trials import TrialPlan
from autotune.trial.pool import WorkerPool
from autotune.tuning import (
    _engine,
    _know_the_baseline,
    _ran_out_of_time,
    _reserve_s,
    run_engine,
)
from autotune.view import RunView, TrialView
from tests.autotune.trial.fake_worker import FACTS
from tests.testing import jobs, landscapes, runs
from tests.testing.landscape_engine import LandscapePool
from tests.testing.studies import LANDSCAPE

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def wait_for(
    run: RunDirectory, holds: Callable[[RunView], bool], limit_s: float = 240.0
) -> RunView:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        view = fold(read(run.journal))
        if holds(view):
            return view
        time.sleep(0.2)
    raise AssertionError(f"not within {limit_s:.0f} s: {fold(read(run.journal))}")


def measured(view: RunView) -> list[int]:
    return [t.number for t in view.trials if t.measured is not None]


@pytest.mark.timeout(900)
def test_a_killed_run_goes_on_with_every_finished_trial_to_files_that_train(tmp_path: Path) -> None:
    asked = jobs.request(jobs.classifier(tmp_path), tmp_path, micro_batch_size=4, trials=3)
    run = starting.prepare(asked, tmp_path / "runs", "job", fresh=False, resume=False)
    engine = starting.start_engine(run)
    before = wait_for(run, lambda view: len(measured(view)) >= 2)
    children = psutil.Process(engine.pid).children(recursive=True)
    assert children
    engine.kill()
    engine.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive, "workers die with their engine"
    held = lease.read(run.lease)
    assert held is not None
    assert not held.is_alive
    # A writer that was killed in the middle of a line.
    with run.journal.open("ab") as journal:
        journal.write(b'{"seq": 99, "t_s": 1.0, "event": {"kind": "trial_st')

    run = starting.prepare(asked, tmp_path / "runs", "job", fresh=False, resume=True)
    engine = starting.start_engine(run)
    assert engine.wait(timeout=600) == 0
    view = fold(read(run.journal))
    assert view.ended is not None
    assert view.ended.reason == "finished"
    assert lease.read(run.lease) is None
    for number in measured(before):
        first, last = before.trial(number), view.trial(number)
        assert first is not None
        assert last is not None
        assert first.outcome == last.outcome, "a finished trial is not run again"
    tried = [t.configuration for t in view.trials if t.purpose in ("baseline", "search")]
    assert len(tried) == len(set(tried))

    assert view.machine is not None
    probed = [r.event for r in read(run.journal) if isinstance(r.event, ProbeStarted)]
    # Probes are told as they begin, unless an earlier test has probed this machine already; copies
    # to a device are left out where there is none.
    numbers = [p.number for p in probed]
    assert numbers == sorted({*numbers})
    assert all(1 <= p.number <= p.num_probes for p in probed)
    assert view.probing is None
    assert probed == [] or "memory bandwidth" in {str(r["name"]) for r in probed[-1].readings}

    assert view.recommendation is not None
    answer = read_document(view.recommendation).recommendation
    assert answer.configuration.global_batch_size == 8
    assert answer.baseline.configuration.micro_batch_size == 4
    assert view.exported is not None
    files = {str(file["name"]) for file in view.exported.files}
    assert {"trainer.py", "accelerator.py", "training_arguments.json", "report.md"} <= files
    assert all((run.out / name).is_file() for name in files)
    assert "model_accepts_loss_kwargs = False" in (run.out / "trainer.py").read_text()

    resumed = starting.start_engine(run)
    assert resumed.wait(timeout=120) == 0
    again = fold(read(run.journal))
    assert again.ended is not None
    assert again.ended.reason == "finished before"
    assert again.recommendation == view.recommendation

    # The last words were lost, and so were the files: nothing is measured again.
    num_trials = len(again.trials)
    lines = run.journal.read_text(encoding="utf-8").splitlines(keepends=True)
    kinds = [json.loads(line)["event"]["kind"] for line in lines]
    kept = lines[: kinds.index("files_exported")]
    run.journal.write_text("".join(kept), encoding="utf-8")
    shutil.rmtree(run.out)
    assert starting.start_engine(run).wait(timeout=300) == 0
    mended = fold(read(run.journal))
    assert mended.ended is not None
    assert mended.ended.reason == "finished"
    assert len(mended.trials) == num_trials
    assert mended.recommendation == view.recommendation
    assert (run.out / "trainer.py").is_file()


@pytest.mark.timeout(600)
def test_a_signalled_engine_saves_reaps_and_says_which_signal(tmp_path: Path) -> None:
    asked = jobs.request(jobs.language_model(tmp_path), tmp_path)
    run = starting.prepare(asked, tmp_path / "runs", "job", fresh=False, resume=False)
    engine = starting.start_engine(run)
    wait_for(run, lambda view: view.running is not None)
    children = psutil.Process(engine.pid).children(recursive=True)
    os.kill(engine.pid, signal.SIGTERM)
    assert engine.wait(timeout=60) == 143
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    view = fold(read(run.journal))
    assert view.ended is not None
    assert view.ended.exit_code == 143
    assert all(t.outcome is not None for t in view.trials)


@pytest.mark.timeout(600)
def test_a_job_that_cannot_load_ends_with_cause_remedy_and_exit_code(tmp_path: Path) -> None:
    spec = replace(
        jobs.classifier(tmp_path), columns=replace(jobs.classifier(tmp_path).columns, text="txt")
    )
    run = starting.prepare(
        jobs.request(spec, tmp_path), tmp_path / "runs", "job", fresh=False, resume=False
    )
    control.send(run.control, "note", "about to fail")
    assert starting.start_engine(run).wait(timeout=120) == 2
    view = fold(read(run.journal))
    assert view.ended is not None
    assert view.ended.cause is not None
    assert "txt" in view.ended.cause
    assert view.ended.remedy is not None
    assert "text" in view.ended.remedy


def test_a_run_is_not_overwritten_and_only_the_same_job_is_resumed(tmp_path: Path) -> None:
    asked = jobs.request(jobs.classifier(tmp_path), tmp_path)
    root = tmp_path / "runs"
    run = starting.prepare(asked, root, "job", fresh=False, resume=False)
    assert run.path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(UsageError, match="There is a run 'job' already"):
        starting.prepare(asked, root, "job", fresh=False, resume=False)
    other = replace(asked, goal=Goal(global_batch_size=16))
    with pytest.raises(UsageError, match="another --global-batch-size: 8 instead of 16"):
        starting.prepare(other, root, "job", fresh=False, resume=True)
    longer = replace(asked, budget=replace(asked.budget, seconds=999.0))
    starting.prepare(longer, root, "job", fresh=False, resume=True)
    assert requests.load(run).budget.seconds == 999.0
    run.journal.write_text("the story so far\n")
    starting.prepare(asked, root, "job", fresh=True, resume=False)
    assert not run.journal.exists()
    moved = list(run.path.glob("journal.jsonl.*"))
    assert [path.read_text() for path in moved] == ["the story so far\n"]


@pytest.mark.parametrize("name", ["../precious", "a/b", "..", ".hidden", " ", "/tmp/x"])
def test_a_name_never_leads_out_of_the_place_for_runs(name: str, tmp_path: Path) -> None:
    asked = jobs.request(jobs.classifier(tmp_path), tmp_path)
    with pytest.raises(UsageError, match="cannot be called"):
        starting.prepare(asked, tmp_path / "runs", name, fresh=True, resume=False)
    assert not (tmp_path / "runs").exists()


def test_a_directory_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "runs" / "thesis"
    mine.mkdir(parents=True)
    (mine / "journal.jsonl").write_text("mine")
    asked = jobs.request(jobs.classifier(tmp_path), tmp_path)
    with pytest.raises(UsageError, match="exists and is no run"):
        starting.prepare(asked, tmp_path / "runs", "thesis", fresh=True, resume=False)
    assert [path.name for path in mine.iterdir()] == ["journal.jsonl"]


def test_what_was_asked_of_an_engine_that_ended_does_not_stop_the_next(tmp_path: Path) -> None:
    asked = jobs.request(jobs.classifier(tmp_path), tmp_path)
    run = starting.prepare(asked, tmp_path / "runs", "job", fresh=False, resume=False)
    control.send(run.control, "stop_now", "SIGTERM")
    starting.prepare(asked, tmp_path / "runs", "job", fresh=False, resume=True)
    assert control.take(run.control) == []


def test_the_baseline_is_tried_here_where_another_engine_kept_it(tmp_path: Path) -> None:
    baseline, other = LANDSCAPE.space.baseline, LANDSCAPE.space.candidates[0]
    run = RunDirectory(tmp_path / "job")
    run.create()
    with Journal(run.journal, run.progress) as journal:
        session = Session(run, journal, seconds=60.0)
        pool = cast("WorkerPool", LandscapePool(0.0))
        history = History(space=LANDSCAPE.space, usable_bytes=LANDSCAPE.usable_bytes)
        engine = Engine(session, pool, history, TrialPlan(limit_bytes=10**12))
        _know_the_baseline(engine)
        assert engine.history.num_search_trials == 0, (
            "nothing was measured that it could be compared with"
        )
        engine.receive(
            Arrival(
                configuration=other,
                outcome=LANDSCAPE.outcome(other),
                origin=Origin(host="node2", run="job", run_id="r", number=1),
            )
        )
        _know_the_baseline(engine)
        assert engine.history.baseline is not None
        _know_the_baseline(engine)
        assert [t.configuration for t in engine.history.trials] == [other, baseline]
        assert engine.history.num_own_trials == 1


def test_what_was_killed_or_stopped_by_the_time_does_not_say_that_nothing_works() -> None:
    spent = Stopped(cause="The time of the run was spent.")
    killed = Failed(cause="The process was killed from outside.", is_killed=True)
    broken = Failed(cause="The loss is a dict.")

    def is_time(*outcomes: Outcome) -> bool:
        trials = (
            FinishedTrial(
                number=n, purpose="search", configuration=LANDSCAPE.space.baseline, outcome=outcome
            )
            for n, outcome in enumerate(outcomes)
        )
        return _ran_out_of_time(History(space=LANDSCAPE.space, trials=tuple(trials)))

    assert is_time()
    assert is_time(spent)
    assert is_time(killed, spent)
    assert not is_time(killed, killed), "there was time"
    assert not is_time(broken, spent)


def test_time_is_kept_for_confirmation_and_for_the_noise_scale_where_it_is_short() -> None:
    history = with_trials(
        History(space=LANDSCAPE.space),
        [
            FinishedTrial(
                number=0,
                purpose="baseline",
                configuration=LANDSCAPE.space.baseline,
                outcome=landscapes.measured([0.5] * 4, 24, 1),
            )
        ],
    )
    engine = cast("Engine", SimpleNamespace(pool=SimpleNamespace(cold_start_s=3.0)))
    # Two contestants: a cold start, two warm-up and two memory steps, four rounds of a second, each
    # after two more steps to warm a new fork up.
    confirming_s = 2 * (3.0 + 4 * 0.5 + 4 * (1.0 + 2 * 0.5))
    assert _reserve_s(engine, history) == pytest.approx(confirming_s)
    # 30 steps of half a second, and 20 that take half as long again.
    assert _reserve_s(engine, history, most_for_noise_s=31) == pytest.approx(confirming_s + 30)
    assert _reserve_s(engine, history, most_for_noise_s=29) == pytest.approx(confirming_s)


def test_an_engine_that_goes_on_weighs_global_batch_sizes_as_the_one_before(
    tmp_path: Path,
) -> None:
    baseline = LANDSCAPE.space.baseline
    larger = replace(baseline, accumulation_steps=4 * baseline.accumulation_steps)
    trials = tuple(
        TrialView(
            number=n,
            purpose="search",
            configuration=configuration,
            why="",
            started_s=0.0,
            outcome=landscapes.measured([1.0] * 4, configuration.global_batch_size, 1),
        )
        for n, configuration in enumerate((baseline, larger))
    )
    noise = NoiseScaleMeasured(
        value=30.0,
        interval=(24.0, 40.0),
        num_windows=20,
        num_micro_batches=2,
        rows_per_micro_batch=8,
        is_preconditioned=False,
        note="made up",
    )
    job = SimpleNamespace(
        space=LANDSCAPE.space,
        usable_bytes=None,
        gradient_bytes=0,
        facts=FACTS,
        pool=None,
        plan=TrialPlan(limit_bytes=1),
        foresight=None,
    )
    with Journal(tmp_path / "journal.jsonl", tmp_path / "progress.json") as journal:
        session = cast("Session", SimpleNamespace(journal=journal))
        view = RunView(trials=trials, noise_scale=noise)
        asked = jobs.request(jobs.classifier(tmp_path), tmp_path)
        _, history = _engine(session, cast("Prepared", job), view, asked)
    assert baseline.global_batch_size == 24
    # At the noise scale's lower end: (24 + 24) / (24 + 96).
    assert history.efficiency(larger).value == pytest.approx(0.4)
    assert history.efficiency(baseline).value == 1.0


@pytest.mark.parametrize("place", [None, "there", "elsewhere", "removed"])
def test_a_finished_run_is_written_where_it_is_wanted_next(
    place: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: list[Path] = []
    monkeypatch.setattr(
        "autotune.tuning.export_run", lambda run, place, **options: exported.append(place)
    )
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "recommendation.json").touch()
    told = tmp_path / (place if place == "removed" else "there")
    story = [*runs.searching("job"), *runs.ending("job", told)]
    out = str(tmp_path / place) if place is not None else None
    run = runs.write_run(tmp_path, "job", story, replace(runs.demo_request(), out=out))
    assert run_engine(run) == 0
    assert exported == ([tmp_path / place] if place in ("elsewhere", "removed") else [])


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*arguments: object, **options: object) -> None:
        with Path("/dev/full").open("w") as full:
            full.write("x")

    monkeypatch.setattr("autotune.tuning.prepare_job", fill)
    run = runs.write_run(tmp_path, "job", [])
    assert run_engine(run) == 1
    ended = view_of(run).ended
    assert ended is not None
    assert ended.cause == f"There is no room left on the disk that holds {run.path}."
    assert str(ended.remedy).startswith("Make room there")
