"""Several engines as processes on one storage: SQLite in a file, and a real PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from autotune.configuration import Configuration
from autotune.events import StudyOpened, TrialReceived, TrialsAwaited
from autotune.request import SamplerName
from autotune.search.studies.storage import open_url
from autotune.view import RunView
from tests.testing import postgresql
from tests.testing.landscape_engine import Process, start
from tests.testing.studies import LANDSCAPE

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
CANDIDATES = LANDSCAPE.space.candidates


@pytest.fixture(scope="module")
def server() -> Iterator[postgresql.Server]:
    if (reason := postgresql.why_not()) is not None:
        pytest.skip(reason)
    with postgresql.server() as found:
        yield found


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty storage, by default on the server where there can be one."""
    kind = getattr(request, "param", "sqlite" if postgresql.why_not() else "postgresql")
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    found: postgresql.Server = request.getfixturevalue("server")
    return found.url(found.new_database())


@pytest.fixture
def engines() -> Iterator[list[Process]]:
    """Engines to be ended, whatever happens."""
    started: list[Process] = []
    yield started
    for engine in started:
        if engine.process.poll() is None:
            engine.process.kill()
            engine.process.wait()


def trials(storage: str) -> list[optuna.trial.FrozenTrial]:
    """The trials of a storage's study, as anybody else's program reads them."""
    opened = open_url(storage)
    try:
        name, *_ = optuna.get_all_study_names(opened)
        return optuna.load_study(study_name=name, storage=opened).get_trials()
    finally:
        opened.remove_session()
        opened.engine.dispose()


def own(view: RunView) -> list[Configuration]:
    """What a run tried itself."""
    return [t.configuration for t in view.trials if t.origin is None]


def received(view: RunView) -> list[Configuration]:
    return [t.configuration for t in view.trials if t.origin is not None]


def outcomes(view: RunView) -> dict[Configuration, object]:
    return {t.configuration: t.outcome for t in view.trials}


@pytest.mark.parametrize(
    ("sampler", "storage"),
    [("auto", "sqlite"), ("grid", "postgresql")],
    indirect=["storage"],
)
def test_two_engines_try_each_candidate_once_and_know_what_both_found(
    sampler: SamplerName, storage: str, tmp_path: Path, engines: list[Process]
) -> None:
    for name in ("one", "two"):
        engines += [start(tmp_path / name, storage, sampler=sampler, trial_s=300.0)]
    for engine in engines:
        engine.wait_for(lambda view: view.running is not None)
    for engine in engines:
        engine.end_trials()
    one, two = (engine.wait() for engine in engines)
    assert own(one)
    assert own(two)
    assert not {*own(one)} & {*own(two)}
    assert len({*own(one)}) == len(own(one))
    assert {*received(one)} <= {*own(two)}
    assert {*received(two)} <= {*own(one)}
    if sampler == "grid":
        # A search waits for what others try, so that the last ones to end are known to both.
        assert outcomes(one) == outcomes(two)
        closed = sum(c.num_removed for c in one.closed)
        assert len(outcomes(one)) + closed >= len(CANDIDATES)
    assert one.num_search_trials == len(own(one)), "others' trials are not on this budget"
    kept = [t for t in trials(storage) if "trial" in t.user_attrs]
    assert len(kept) == len(own(one)) + len(own(two))
    assert all(t.state.is_finished() for t in trials(storage))


def test_like_machines_share_trials_but_not_budgets_and_unlike_ones_share_nothing(
    storage: str, tmp_path: Path, engines: list[Process]
) -> None:
    engines.append(start(tmp_path / "one", storage, trials=3))
    first = engines[0].wait()
    engines.append(start(tmp_path / "two", storage, trials=2))
    second = engines[1].wait()
    assert len(own(first)) == 3
    assert received(second) == own(first)
    assert len(own(second)) == 2
    assert not {*own(first)} & {*own(second)}
    (said,) = engines[1].events("study_opened")
    assert isinstance(said, StudyOpened)
    assert (said.num_trials, said.num_running, said.again) == (3, 0, False)
    assert postgresql.PASSWORD not in engines[1].run.journal.read_text()
    (arrival, *_) = engines[1].events("trial_received")
    assert isinstance(arrival, TrialReceived)
    assert (arrival.number, arrival.origin.run, arrival.origin.number) == (0, "job", 0)
    assert arrival.purpose == "baseline"

    engines.append(start(tmp_path / "unlike", storage, trials=2, machine="other"))
    unlike = engines[2].wait()
    assert own(unlike) == own(first)[:2], "an unlike machine tries all for itself"
    assert received(unlike) == []
    assert first.study is not None
    assert unlike.study is not None
    assert first.study.study != unlike.study.study
    assert unlike.study.num_trials == 0
    (warning,) = unlike.warnings
    assert f"{first.study.study} is of another machine" in warning.cause


def test_what_an_engine_that_was_killed_in_a_trial_had_is_taken_over(
    storage: str, tmp_path: Path, engines: list[Process]
) -> None:
    engines.append(start(tmp_path / "one", storage, trial_s=300.0))
    engines[0].wait_for(lambda view: view.running is not None)
    engines.append(start(tmp_path / "two", storage, trial_s=0.2))
    view = engines[1].wait_for(lambda view: bool(own(view)))
    assert own(view) != own(engines[0].view), "it is left to the one that lives"
    (orphan,) = own(engines[0].view)
    os.kill(engines[0].process.pid, signal.SIGKILL)
    engines[0].process.wait()
    assert orphan in own(engines[1].wait())


@pytest.mark.parametrize("storage", ["sqlite"], indirect=True)
def test_a_search_that_has_nothing_left_waits_for_what_another_engine_tries(
    storage: str, tmp_path: Path, engines: list[Process]
) -> None:
    engines.append(start(tmp_path / "one", storage, trials=1, trial_s=300.0))
    engines[0].wait_for(lambda view: view.running is not None)
    engines.append(start(tmp_path / "two", storage, trial_s=0.02))
    engines[1].wait_until(lambda: bool(engines[1].events("trials_awaited")))
    engines[0].end_trials()
    second = engines[1].wait()
    (slow,) = own(engines[0].wait())
    assert slow in received(second)
    assert slow not in own(second)
    (awaited,) = engines[1].events("trials_awaited")
    assert isinstance(awaited, TrialsAwaited)
    assert [Configuration.from_json(c) for c in awaited.configurations] == [slow]


@pytest.mark.parametrize("storage", ["sqlite", "postgresql"], indirect=True)
def test_many_engines_that_want_the_same_at_once_get_each_candidate_once(
    storage: str, tmp_path: Path
) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.testing.studies import *\n"
        "with opened(Path('unused'), run=sys.argv[2], storage=sys.argv[1],\n"
        "            patience=Patience()) as study:\n"
        "    print('ready', flush=True); sys.stdin.readline()\n"
        "    history = empty()\n"
        "    for place, candidate in enumerate(LANDSCAPE.space.candidates[:10]):\n"
        "        if study.ask(history, candidate) is not None:\n"
        "            print(place, flush=True)\n"
        "            history = tell(study, history, LANDSCAPE.outcome(candidate))\n"
        "    print('done', flush=True); sys.stdin.readline()\n"
    )
    others = [
        subprocess.Popen(
            [sys.executable, "-c", script, storage, f"run-{number}"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    taken: list[int] = []
    try:
        for other in others:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
        for other in others:
            assert other.stdin is not None
            other.stdin.write("\n")
            other.stdin.flush()
        for other in others:
            assert other.stdout is not None
            while (line := other.stdout.readline()) not in ("done\n", ""):
                taken.append(int(line))
    finally:
        for other in others:
            other.communicate("\n", timeout=60)
    assert sorted(taken) == [*range(10)]


def test_a_server_that_goes_away_in_the_middle_costs_one_warning_and_no_trial(
    server: postgresql.Server, tmp_path: Path, engines: list[Process]
) -> None:
    storage = server.url(server.new_database())
    engines.append(start(tmp_path / "one", storage, trial_s=0.5))
    engines[0].wait_for(lambda view: len(own(view)) >= 3)
    server.stop()
    try:
        alone = engines[0].wait_for(lambda view: bool(view.warnings))
        engines[0].wait_for(lambda view: len(own(view)) >= len(own(alone)) + 2)
    finally:
        server.start()
    view = engines[0].wait()
    assert len(view.warnings) == 1
    assert "cannot be used any more" in view.warnings[0].cause
    assert postgresql.PASSWORD not in view.warnings[0].cause
    assert "goes on alone" in (view.warnings[0].remedy or "")
    first, again = engines[0].events("study_opened")
    assert isinstance(first, StudyOpened)
    assert isinstance(again, StudyOpened)
    assert (first.again, again.again) == (False, True)
    told = [t for t in trials(storage) if "trial" in t.user_attrs]
    numbers = sorted(t.user_attrs["trial"]["number"] for t in told)
    assert numbers == [t.number for t in view.trials]
