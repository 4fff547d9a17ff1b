"""The Optuna study: candidates only, nothing twice, constraints, orphans, damage, rebuilding."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from autotune.configuration import Checkpointing, Configuration
from autotune.errors import UsageError
from autotune.outcome import Failed, Measured, MemoryUse, Outcome, OutOfMemory, Speed
from autotune.search.finished import FinishedTrial
from autotune.search.history import History
from autotune.search.study import Study, make_sampler, nearest, open_in_run, study_name
from autotune.space import Space, plan
from autotune.workload.facts import CheckpointingForm

USABLE_BYTES = 600 * 2**20


def space(global_batch_size: int = 48) -> Space:
    forms = tuple(
        CheckpointingForm(
            every_n_layers=n, offload=False, is_available=True, saved_bytes=kept, reason=None
        )
        for n, kept in ((1, 10), (2, 50))
    )
    baseline = Configuration(micro_batch_size=8, accumulation_steps=global_batch_size // 8)
    return plan(baseline=baseline, num_rows=1000, forms=forms)


def measured(configuration: Configuration, samples_per_s: float, total_bytes: int) -> Measured:
    rows = configuration.global_batch_size
    speed = Speed(
        step_times_s=(rows / samples_per_s,) * 3, step_samples=(rows,) * 3, step_tokens=(0,) * 3
    )
    memory = MemoryUse(
        allocated_bytes=total_bytes,
        reserved_bytes=total_bytes,
        outside_bytes=0,
        total_bytes=total_bytes,
        method="made up",
    )
    return Measured(
        speed=speed,
        memory=memory,
        samples_per_s=samples_per_s,
        samples_per_s_ci95=(samples_per_s, samples_per_s),
    )


def made_up(configuration: Configuration) -> Outcome:
    """A device on which memory grows with the rows kept, and speed saturates."""
    kept = {None: 40, 2: 30, 1: 20}[configuration.checkpointing.every_n_layers]
    needed = configuration.micro_batch_size * kept * 2**20
    if needed > USABLE_BYTES:
        return OutOfMemory(
            where="device",
            cause="made up",
            needed_at_least_bytes=needed,
            limit_bytes=USABLE_BYTES,
        )
    slowdown = {None: 1.0, 2: 1.15, 1: 1.3}[configuration.checkpointing.every_n_layers]
    size = configuration.micro_batch_size
    return measured(configuration, 100 * size / (size + 6) / slowdown, needed)


def search(study: Study, history: History, num_trials: int) -> History:
    for _ in range(num_trials):
        if not history.open_candidates:
            break
        configuration = study.ask(history)
        assert configuration in history.open_candidates
        trial = FinishedTrial(
            number=len(history.trials),
            purpose="search",
            configuration=configuration,
            outcome=made_up(configuration),
        )
        study.tell(trial)
        history = history.with_trial(trial)
    return history


@pytest.mark.parametrize("name", ["tpe", "gp", "random"])
def test_a_sampler_tries_nothing_twice_and_hardly_anything_that_cannot_fit(
    name: str, tmp_path: Path
) -> None:
    candidates = space(240)
    study = Study(
        f"sqlite:///{tmp_path / 'study.db'}",
        "made-up",
        candidates,
        make_sampler(name, seed=1),
        usable_bytes=USABLE_BYTES,
        ignores_pruned=name == "gp",
    )
    history = History(space=candidates, usable_bytes=USABLE_BYTES)
    history = search(study, history, num_trials=40)
    tried = [t.configuration for t in history.trials]
    assert len(tried) == len(set(tried))
    ran_out = [t for t in history.trials if isinstance(t.outcome, OutOfMemory)]
    assert len(ran_out) <= 6
    fitting = [c for c in candidates.candidates if isinstance(made_up(c), Measured)]
    best = max(fitting, key=lambda c: made_up(c).samples_per_s)  # type: ignore[union-attr]
    assert best in tried
    stored = [t for t in study.trials if t.state.is_finished()]
    assert len(stored) == len(tried)
    for trial, known in zip(stored, history.trials, strict=True):
        assert trial.user_attrs["configuration"] == known.configuration.to_json()
        assert trial.user_attrs["autotune:outcome"]["kind"] == known.outcome.kind
        if isinstance(known.outcome, OutOfMemory):
            expected = TrialState.COMPLETE if name == "gp" else TrialState.PRUNED
            assert trial.state is expected
            assert trial.user_attrs["memory"] > 0
            if hasattr(optuna.Trial, "set_constraint"):
                assert trial.constraints["memory"] > 0
        else:
            assert trial.user_attrs["memory"] <= 0


def test_failures_are_told_as_failed_and_best_comes_from_what_was_measured(tmp_path: Path) -> None:
    candidates = space()
    study = Study(
        f"sqlite:///{tmp_path / 'study.db'}",
        "s",
        candidates,
        make_sampler("random", seed=0),
        usable_bytes=USABLE_BYTES,
    )
    history = History(space=candidates)
    outcomes: list[Outcome] = [Failed(cause="a fault"), made_up(candidates.candidates[0])]
    for number, outcome in enumerate(outcomes):
        configuration = study.ask(history, candidates.candidates[number])
        assert configuration == candidates.candidates[number]
        study.tell(
            FinishedTrial(
                number=number, purpose="search", configuration=configuration, outcome=outcome
            )
        )
    assert [t.state for t in study.trials] == [TrialState.FAIL, TrialState.COMPLETE]


def test_a_trial_that_a_dead_engine_left_running_is_ended_and_a_living_one_is_not(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    left_running = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from tests.autotune.search.test_study import *\n"
        "s = space(); study = Study(sys.argv[1], 's', s, None, usable_bytes=1)\n"
        "study.ask(History(space=s), s.candidates[0]); import os; os._exit(9)\n"
    )
    root = str(Path(__file__).parents[3])
    ended = subprocess.run([sys.executable, "-c", left_running, url, root], check=False)
    assert ended.returncode == 9
    candidates = space()
    study = Study(url, "s", candidates, None, usable_bytes=1)
    assert [t.state for t in study.trials] == [TrialState.FAIL]
    study.ask(History(space=candidates), candidates.candidates[1])
    again = Study(url, "s", candidates, None, usable_bytes=1)
    assert [t.state for t in again.trials] == [TrialState.FAIL, TrialState.RUNNING]


def test_another_space_gets_another_study_and_the_old_one_stays(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    names = []
    for global_batch_size in (48, 96):
        candidates = space(global_batch_size)
        name = study_name("job", candidates.digest)
        names.append(name)
        study = Study(url, name, candidates, make_sampler("tpe", 0), usable_bytes=USABLE_BYTES)
        search(study, History(space=candidates, usable_bytes=USABLE_BYTES), num_trials=3)
    assert names[0] != names[1]
    assert study.other_studies("job") == [names[0]]
    assert len(optuna.load_study(study_name=names[0], storage=url).trials) == 3


def test_a_damaged_database_is_moved_aside_and_rebuilt_from_the_history(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    candidates = space()
    study, moved = open_in_run(
        path, "s", candidates, None, usable_bytes=USABLE_BYTES, ignores_pruned=False
    )
    assert moved is None
    history = History(space=candidates, usable_bytes=USABLE_BYTES)
    for number, configuration in enumerate(candidates.candidates[:3]):
        study.ask(history, configuration)
        trial = FinishedTrial(
            number=number,
            purpose="search",
            configuration=configuration,
            outcome=made_up(configuration),
        )
        study.tell(trial)
        history = history.with_trial(trial)
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        sqlite3.connect(path).execute("select 1 from studies")
    rebuilt, moved = open_in_run(
        path, "s", candidates, None, usable_bytes=USABLE_BYTES, ignores_pruned=False
    )
    assert moved is not None
    assert moved.read_bytes().startswith(b"this is not a database")
    assert rebuilt.rebuild(history) == 3
    assert rebuilt.rebuild(history) == 0
    assert [t.value for t in rebuilt.trials] == [t.value for t in study_values(history)]


def study_values(history: History) -> list[optuna.trial.FrozenTrial]:
    """What the trials of a history look like to Optuna."""
    return [
        optuna.trial.create_trial(value=t.outcome.samples_per_s)
        for t in history.trials
        if isinstance(t.outcome, Measured)
    ]


def test_a_storage_that_is_not_there_is_a_usage_error_without_its_password() -> None:
    with pytest.raises(UsageError) as caught:
        Study("nonsense://me:secret@nowhere/db", "s", space(), None, usable_bytes=1)
    assert "secret" not in str(caught.value)
    assert "--storage" in str(caught.value)


def test_proposals_move_to_the_same_form_first() -> None:
    candidates = space(48).candidates
    wanted = {"micro_batch_size": 5, "checkpointing": str(Checkpointing(every_n_layers=1))}
    found = nearest(candidates, wanted)
    assert found.checkpointing == Checkpointing(every_n_layers=1)
    assert found.micro_batch_size == 6
