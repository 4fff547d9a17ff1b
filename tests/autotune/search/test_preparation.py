"""What comes before the first trial: stopped in the middle, and begun where others were killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.journal import Journal
from autotune.run_directory import RunDirectory
from autotune.search import preparation
from autotune.search.preparation import prepare_job, worker_pool
from autotune.search.session import Session
from probes.machine import Machine
from tests.testing import jobs, runs


def test_a_stop_is_heeded_while_the_machine_is_surveyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create()
    with Journal(run.journal, run.progress) as journal:
        session = Session(run, journal, seconds=60.0)

        def survey(*, on_progress: object, on_wait: Callable[[], None]) -> Machine:
            on_wait()
            session.request_stop("now", "SIGTERM")
            on_wait()
            raise AssertionError("nobody was stopped")

        monkeypatch.setattr(preparation, "known_machine", survey)
        asked = jobs.request(jobs.language_model(tmp_path), tmp_path)
        with prepare_job(session, asked) as job:
            assert job is None
        assert journal.records == []


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create()
    left = [run.workload / f"trial-{name}" / "saved" for name in ("before", "meanwhile")]
    left[0].mkdir(parents=True)
    (left[0] / "model.safetensors").write_bytes(b"large")
    kept = run.workload / "rows.arrow"
    kept.touch()
    with Journal(run.journal, run.progress) as journal:
        session = Session(run, journal, seconds=60.0)
        asked = jobs.request(jobs.language_model(tmp_path), tmp_path)
        with worker_pool(session, asked, runs.machine(), {}):
            assert not left[0].parent.exists()
            left[1].mkdir(parents=True)
    assert kept.exists()
    assert not left[1].parent.exists()
