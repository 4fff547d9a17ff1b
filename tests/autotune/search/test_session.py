"""One engine's hold on a run, and what ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.journal import Journal
from autotune.run_directory import RunDirectory
from autotune.search import session as session_module
from autotune.search.session import Session


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.create()
    return run


@pytest.fixture
def journal(run: RunDirectory) -> Iterator[Journal]:
    with Journal(run.journal, run.progress) as journal:
        yield journal


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "POLL_INTERVAL_S", 0.0)


def test_a_caller_that_ends_ends_the_run(run: RunDirectory, journal: Journal) -> None:
    caller = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    session = Session(run, journal, seconds=60.0, parent_process=caller.pid)
    assert session.why_stop_now() is None
    caller.communicate(b"\n", timeout=30)
    assert session.why_stop_now() == "Stopped by the calling process ended."


def test_a_caller_that_was_gone_before_anybody_looked_ends_it_too(
    run: RunDirectory, journal: Journal
) -> None:
    caller = subprocess.Popen([sys.executable, "-c", ""])
    assert caller.wait(timeout=30) == 0
    session = Session(run, journal, seconds=60.0, parent_process=caller.pid)
    assert session.should_end()
    assert session.stop == "now"


def test_nobody_is_watched_where_there_is_no_caller_beside_the_engine(
    run: RunDirectory, journal: Journal
) -> None:
    for parent in (None, os.getpid()):
        assert not Session(run, journal, seconds=60.0, parent_process=parent).should_end()
