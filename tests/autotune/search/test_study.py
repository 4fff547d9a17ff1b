"""The Optuna study: an index that follows the history, survives damage and keeps nothing back."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from autotune.configuration import NO_CHECKPOINTING, Checkpointing, Configuration
from autotune.errors import UsageError
from autotune.outcome import Failed, Measured, Outcome, OutOfMemory, Stopped, TimedOut
from autotune.request import SamplerName
from autotune.search.closing import with_trial
from autotune.search.finished import FinishedTrial
from autotune.search.history import History
from autotune.search.storage import StudyIdentity
from autotune.search.study import Study
from autotune.space import Space
from tests.testing.landscapes import (
    CPU_SHORT,
    Entry,
    Landscape,
    make_landscape,
    make_space,
    measured,
)

LANDSCAPE = make_landscape(CPU_SHORT, fraction_out=0.4)


class Warnings(list[tuple[str, str | None]]):
    """What the user was told."""

    def __call__(self, cause: str, remedy: str | None) -> None:
        self.append((cause, remedy))


def empty(landscape: Landscape = LANDSCAPE) -> History:
    return History(space=landscape.space, usable_bytes=landscape.usable_bytes)


def identity(history: History, **parts: str) -> StudyIdentity:
    return StudyIdentity(stem="my job", parts={"space": history.space.digest, **parts})


@contextmanager
def opened(
    path: Path,
    history: History | None = None,
    *,
    sampler: SamplerName = "auto",
    run: str = "run-1",
    told: Warnings | None = None,
    storage: str | None = None,
    machine: str = "m",
) -> Iterator[Study]:
    history = history or empty()
    study = Study(
        identity(history, machine=machine),
        history,
        sampler=sampler,
        seed=1,
        run=run,
        warn=Warnings() if told is None else told,
        path=path,
        storage=storage,
        lock_timeout_s=0.05,
    )
    try:
        yield study
    finally:
        study.close()


def run_trials(
    study: Study, history: History, num: int, landscape: Landscape = LANDSCAPE
) -> History:
    for _ in range(num):
        configuration = study.ask(history)
        if configuration is None:
            break
        assert configuration in history.open_candidates
        history = tell(study, history, landscape.outcome(configuration))
    return history


def tell(study: Study, history: History, outcome: Outcome) -> History:
    """Ends the trial that was asked for last."""
    assert study._asked is not None
    configuration = study._axes.configuration(study._asked.params)
    assert configuration is not None
    trial = FinishedTrial(
        number=len(history.trials), purpose="search", configuration=configuration, outcome=outcome
    )
    study.tell(trial)
    return with_trial(history, trial)


def stored(study: Study) -> list[optuna.trial.FrozenTrial]:
    return study._study.get_trials()


def numbers(trials: list[optuna.trial.FrozenTrial]) -> list[int]:
    return [t.user_attrs["trial"]["number"] for t in trials]


def load(path: Path, name: str) -> list[optuna.trial.FrozenTrial]:
    """The trials as anybody else's program reads them."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    try:
        return optuna.load_study(study_name=name, storage=storage).get_trials()
    finally:
        storage.remove_session()
        storage.engine.dispose()


def take_set_constraint_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with an older Optuna, whose samplers take a function."""
    for module in ("sampler", "study"):
        monkeypatch.setattr(f"autotune.search.{module}.has_set_constraint", lambda: False)


def made_up_device() -> Landscape:
    """Sizes 1 to 64 on a device that takes 40 units a sample, half with checkpointing, up to 600.

    As in case 23: the rate rises right up to the edge.
    """
    checkpointing = Checkpointing(every_n_layers=1)
    candidates = tuple(
        Configuration(micro_batch_size=size, accumulation_steps=2, checkpointing=form)
        for form in (NO_CHECKPOINTING, checkpointing)
        for size in range(1, 65)
    )
    entries = []
    for candidate in candidates:
        size, is_on = candidate.micro_batch_size, candidate.checkpointing.is_on
        need = round(size * 40 * (0.5 if is_on else 1.0))
        rate = size**0.8 * (0.75 if is_on else 1.0)
        fits = measured([size / rate] * 4, size, need)
        too_large = OutOfMemory(where="device", cause="full", limit_bytes=600)
        entries.append(Entry(configuration=candidate, outcome=fits if need <= 600 else too_large))
    space = Space(
        global_batch_size=128,
        baseline=candidates[7],
        candidates=candidates,
        ruled_out=(),
        forms=(NO_CHECKPOINTING, checkpointing),
        kept_fractions=(1.0, 0.5),
    )
    return Landscape(name="case 23", space=space, entries=tuple(entries), usable_bytes=600)


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random", "grid"])
def test_every_sampler_tries_nothing_twice_and_few_that_do_not_fit(
    sampler: SamplerName, tmp_path: Path
) -> None:
    landscape = made_up_device()
    # The gp sampler takes half a second a trial.
    num_trials = 40 if sampler != "gp" else 15
    told = Warnings()
    history = empty(landscape)
    with opened(tmp_path / "study.db", history, sampler=sampler, told=told) as study:
        history = run_trials(study, history, num_trials, landscape)
        trials = stored(study)
    assert told == []
    tried = [t.configuration for t in history.trials]
    assert len(set(tried)) == len(tried) == len(trials)
    assert {*tried} | {c for r in history.regions for c in r.configurations} | {
        *history.open_candidates
    } == {*landscape.space.candidates}
    assert sum(isinstance(t.outcome, OutOfMemory) for t in history.trials) <= 5
    told_as = {TrialState.PRUNED} | ({TrialState.COMPLETE} if sampler == "gp" else set())
    worst = min(t.measured.samples_per_s for t in history.measured)
    for trial, finished in zip(trials, history.trials, strict=True):
        violation = constraint(trial)
        if isinstance(finished.outcome, OutOfMemory):
            assert violation > 0
            assert trial.state in told_as
            assert trial.value is None or trial.value >= worst
        else:
            assert isinstance(finished.outcome, Measured)
            assert trial.value == finished.outcome.samples_per_s
            assert violation <= 0


def constraint(trial: optuna.trial.FrozenTrial) -> float:
    if hasattr(trial, "constraints"):
        return trial.constraints["memory"]
    return float(trial.user_attrs["memory_over_limit"])


def test_a_sampler_that_ignores_pruned_trials_is_told_the_worst_value(tmp_path: Path) -> None:
    fits, too_large = LANDSCAPE.space.candidates[0], LANDSCAPE.space.candidates[7]
    with opened(tmp_path / "study.db", sampler="gp") as study:
        study.ask(empty(), fits)
        history = tell(study, empty(), LANDSCAPE.outcome(fits))
        study.ask(history, too_large)
        tell(study, history, OutOfMemory(where="device", cause="full"))
        first, second = stored(study)
    assert second.state is TrialState.COMPLETE
    assert second.value == first.value
    assert constraint(second) == 1.0


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_an_older_optuna_gets_constraints_from_a_function(
    sampler: SamplerName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sampler", "study"):
        monkeypatch.setattr(f"autotune.search.{module}.has_set_constraint", lambda: False)
    told = Warnings()
    with opened(tmp_path / "study.db", sampler=sampler, told=told) as study:
        history = run_trials(study, empty(), 10)
        trials = stored(study)
    assert told == []
    ran_out = [isinstance(t.outcome, OutOfMemory) for t in history.trials]
    assert True in ran_out
    for trial, did_run_out in zip(trials, ran_out, strict=True):
        # GPSampler leaves pruned trials without a constraint; it does not read them either.
        if trial.state is TrialState.COMPLETE or sampler == "tpe":
            assert (trial.system_attrs["constraints"][0] > 0) == did_run_out


def test_the_first_trial_that_runs_out_gets_no_made_up_value(tmp_path: Path) -> None:
    too_large = LANDSCAPE.space.candidates[7]
    with opened(tmp_path / "study.db", sampler="gp") as study:
        assert study.ask(empty(), too_large) == too_large
        tell(study, empty(), OutOfMemory(where="device", cause="full"))
        (trial,) = stored(study)
    assert trial.state is TrialState.PRUNED
    assert trial.value is None
    assert constraint(trial) == 1.0


@pytest.mark.parametrize(
    "outcome",
    [
        Failed(cause="no"),
        TimedOut(limit_s=1.0, cause="slow"),
        Stopped(cause="by hand"),
    ],
)
def test_what_was_not_measured_is_told_as_failed_and_whole(
    outcome: Failed | TimedOut | Stopped, tmp_path: Path
) -> None:
    with opened(tmp_path / "study.db") as study:
        study.ask(empty(), LANDSCAPE.space.baseline)
        tell(study, empty(), outcome)
        (trial,) = stored(study)
    assert trial.state is TrialState.FAIL
    assert trial.user_attrs["trial"]["outcome"]["kind"] == outcome.kind
    assert trial.user_attrs["trial"]["outcome"]["cause"] == outcome.cause
    assert trial.user_attrs["trial"]["configuration"] == LANDSCAPE.space.baseline.to_json()


def test_a_trial_that_a_killed_engine_left_running_is_failed_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "study.db"
    script = (
        "import os, sys; from pathlib import Path\n"
        "from tests.autotune.search.test_study import *\n"
        "history = empty()\n"
        "study = Study(identity(history, machine='m'), history, sampler='auto', seed=1,\n"
        "    run='run-1', warn=Warnings(), path=Path(sys.argv[1]))\n"
        "study.ask(history, history.space.candidates[0])\n"
        "history = tell(study, history, LANDSCAPE.outcome(history.space.candidates[0]))\n"
        "study.ask(history, history.space.candidates[1])\n"
        "os._exit(137)\n"
    )
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        [sys.executable, "-c", script, str(path)], cwd=root, capture_output=True, text=True
    )
    assert ended.returncode == 137, ended.stderr
    name = identity(empty(), machine="m").name
    assert [t.state.name for t in load(path, name)] == ["COMPLETE", "RUNNING"]
    first = FinishedTrial(
        number=0,
        purpose="search",
        configuration=LANDSCAPE.space.candidates[0],
        outcome=LANDSCAPE.outcome(LANDSCAPE.space.candidates[0]),
    )
    history = with_trial(empty(), first)
    with opened(path, history) as study:
        assert [t.state.name for t in stored(study)] == ["COMPLETE", "FAIL"]
        assert study.ask(history, LANDSCAPE.space.candidates[1]) == LANDSCAPE.space.candidates[1]
        assert study._study.best_trial.number == 0


def test_an_outcome_that_only_the_journal_has_is_added(tmp_path: Path) -> None:
    history = empty()
    for number, candidate in enumerate(LANDSCAPE.space.candidates[:3]):
        history = with_trial(
            history,
            FinishedTrial(
                number=number,
                purpose="search",
                configuration=candidate,
                outcome=LANDSCAPE.outcome(candidate),
            ),
        )
    for _ in range(2):
        with opened(tmp_path / "study.db", history) as study:
            assert numbers(stored(study)) == [0, 1, 2]
            assert [t.value for t in stored(study)] == [
                t.measured.samples_per_s for t in history.measured
            ]


def test_another_space_gets_another_study_and_the_first_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    told = Warnings()
    with opened(path, told=told) as study:
        history = run_trials(study, empty(), 2)
        first = study.name
    assert told == []
    other = make_landscape(CPU_SHORT, global_batch_size=48)
    with opened(path, empty(other), told=told) as study:
        run_trials(study, empty(other), 1, other)
        second = study.name
    assert first != second
    ((cause, remedy),) = told
    assert cause == f"The study {first} is of another space, so this run starts the study {second}."
    assert remedy == "The earlier one stays in the storage as it is."
    assert len(load(path, first)) == 2
    assert len(load(path, second)) == 1
    with opened(path, history, told=told) as study:
        assert numbers(stored(study)) == [0, 1]
    assert len(told) == 1, "going on with a study is nothing to tell of"


def test_a_damaged_file_is_moved_aside_and_built_again(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with opened(path) as study:
        history = run_trials(study, empty(), 3)
    path.write_bytes(path.read_bytes()[:100] + b"\0nonsense" * 1000)
    told = Warnings()
    with opened(path, history, told=told) as study:
        assert numbers(stored(study)) == [0, 1, 2]
    ((cause, remedy),) = told
    assert cause.startswith(f"The study {path} was damaged (")
    assert "study.db.damaged-1" in (remedy or "")
    assert (tmp_path / "study.db.damaged-1").read_bytes().endswith(b"nonsense")
    assert len(load(path, identity(empty(), machine="m").name)) == 3


def test_a_text_file_in_the_place_of_the_study_is_moved_aside_too(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.write_text("this is no database\n" * 200)
    told = Warnings()
    with opened(path, told=told) as study:
        run_trials(study, empty(), 1)
    assert "file is not a database" in told[0][0]
    assert (tmp_path / "study.db.damaged-1").read_text().startswith("this is no database")


def test_a_locked_file_is_left_alone_and_caught_up_with_later(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with opened(path) as study:
        history = run_trials(study, empty(), 1)
        name = study.name
    holder = sqlite3.connect(path)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        told = Warnings()
        with opened(path, history, told=told) as study:
            history = run_trials(study, history, 2)
            assert len(stored(study)) == 3
        assert told[0][0] == f"The study {path} is locked by another process."
        assert len(told) == 1
    finally:
        holder.close()
    assert len(load(path, name)) == 1
    with opened(path, history):
        pass
    assert numbers(load(path, name)) == [0, 1, 2]


def test_a_study_that_is_locked_in_the_middle_of_a_run_costs_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    told = Warnings()
    with opened(path, sampler="tpe", told=told) as study:
        history = run_trials(study, empty(), 2)
        holder = sqlite3.connect(path)
        try:
            holder.execute("BEGIN EXCLUSIVE")
            history = run_trials(study, history, 3)
            assert numbers(stored(study)) == [0, 1, 2, 3, 4]
        finally:
            holder.close()
    assert len(told) == 1
    assert "database is locked" in told[0][0]
    assert len(history.trials) == 5


def test_a_shared_storage_keeps_the_whole_outcome_for_other_runs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    with opened(tmp_path / "unused.db", storage=url, run="run-1") as study:
        history = run_trials(study, empty(), 3)
        assert study.outcomes_of_other_runs() == {}
    with opened(tmp_path / "unused.db", storage=url, run="run-2") as study:
        assert study.outcomes_of_other_runs() == {
            t.configuration: t.outcome for t in history.trials
        }
        assert study.ask(empty(), LANDSCAPE.space.baseline) == LANDSCAPE.space.baseline
    assert not (tmp_path / "unused.db").exists()


def test_a_trial_that_another_living_run_has_open_stays_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.autotune.search.test_study import *\n"
        "history = empty()\n"
        "study = Study(identity(history, machine='m'), history, sampler='auto', seed=1,\n"
        "    run='run-1', warn=Warnings(), path=Path('unused'), storage=sys.argv[1])\n"
        "study.ask(history, history.space.candidates[0])\n"
        "print('asked', flush=True); sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, url],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"asked\n"
        with opened(tmp_path / "unused.db", storage=url, run="run-2") as study:
            assert [t.state.name for t in stored(study)] == ["RUNNING"]
    finally:
        other.communicate()
    with opened(tmp_path / "unused.db", storage=url, run="run-2") as study:
        assert [t.state.name for t in stored(study)] == ["FAIL"]


def test_what_somebody_enqueued_is_served_if_it_is_open(tmp_path: Path) -> None:
    wished, other = LANDSCAPE.space.candidates[2], LANDSCAPE.space.candidates[0]
    with opened(tmp_path / "study.db", sampler="random") as study:
        study._study.enqueue_trial(study._axes.parameters(wished))
        study._study.enqueue_trial({"micro_batch_size": 5, "checkpointing": "no checkpointing"})
        study._study.enqueue_trial(study._axes.parameters(wished))
        assert study.ask(empty(), other) == wished
        history = tell(study, empty(), LANDSCAPE.outcome(wished))
        assert study.ask(history, other) == other, "5 is no candidate, and the wish is known"


def test_a_storage_that_cannot_be_opened_is_a_usage_error_without_its_password(
    tmp_path: Path,
) -> None:
    url = "nosuchdb://me:secret@host/studies"
    with pytest.raises(UsageError) as caught, opened(tmp_path / "unused.db", storage=url):
        pass
    assert "nosuchdb://me:***@host/studies" in caught.value.cause
    assert "secret" not in str(caught.value)
    assert "--storage" in (caught.value.remedy or "")


def test_no_candidate_is_asked_for_when_all_are_known(tmp_path: Path) -> None:
    with opened(tmp_path / "study.db", sampler="random") as study:
        history = run_trials(study, empty(), 1000)
        assert history.open_candidates == ()
        assert study.ask(history) is None
    assert len(history.trials) < len(LANDSCAPE.space.candidates)


def test_a_sampler_that_cannot_propose_is_replaced_by_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("singular matrix")

    monkeypatch.setattr(optuna.samplers.TPESampler, "sample_relative", broken)
    told = Warnings()
    with opened(tmp_path / "study.db", sampler="tpe", told=told) as study:
        history = run_trials(study, empty(), 3)
    first_three = [t.configuration for t in history.trials]
    assert first_three == list(LANDSCAPE.space.candidates[:3])
    assert len(told) == 1
    assert "TPESampler: singular matrix" in told[0][0]


def test_gp_without_scipy_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "autotune.search.sampler.importlib.util.find_spec",
        lambda name: None if name == "scipy" else object(),
    )
    with (
        pytest.raises(UsageError, match="gp needs scipy, which is not installed") as caught,
        opened(tmp_path / "study.db", sampler="gp"),
    ):
        pass
    assert "pip install scipy" in (caught.value.remedy or "")


def test_only_gp_loads_torch_and_only_when_it_has_a_model() -> None:
    script = (
        "import sys, tempfile; from pathlib import Path\n"
        "from tests.autotune.search.test_study import *\n"
        "for sampler in ('tpe', 'random', 'auto', 'gp'):\n"
        "    with opened(Path(tempfile.mkdtemp()) / 's.db', sampler=sampler) as study:\n"
        "        study.ask(empty(), LANDSCAPE.space.baseline)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[3], check=True, timeout=120
    )


def test_names_follow_what_a_study_depends_on() -> None:
    space = make_space(24)
    base = StudyIdentity(stem="org/model", parts={"space": space.digest, "machine": "a"})
    same = StudyIdentity(stem="org/model", parts={"machine": "a", "space": space.digest})
    assert base.name == same.name
    assert base.name.startswith("org-model-")
    others = [
        StudyIdentity(stem="org/model", parts={"space": make_space(48).digest, "machine": "a"}),
        StudyIdentity(stem="org/model", parts={"space": space.digest, "machine": "b"}),
    ]
    assert len({base.name, *(o.name for o in others)}) == 3


def test_optuna_warns_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with opened(tmp_path / "study.db", sampler="gp") as study:
            run_trials(study, empty(), 6)
    assert [str(w.message) for w in caught if "optuna" in str(w.filename).lower()] == []
    assert capsys.readouterr() == ("", "")
