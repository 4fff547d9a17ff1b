"""The Optuna study: an index that follows the history and keeps the whole outcome of each trial."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from optuna.trial import TrialState

from autotune.outcome import Failed, OutOfMemory, Stopped, TimedOut
from autotune.search.evidence.closing import with_trial
from autotune.search.evidence.finished import FinishedTrial
from tests.testing.landscapes import CPU_SHORT, make_landscape
from tests.testing.studies import (
    LANDSCAPE,
    Warnings,
    empty,
    identity,
    load,
    numbers,
    opened,
    run_trials,
    stored,
    tell,
)


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
        "from tests.testing.studies import *\n"
        "first, second = LANDSCAPE.space.candidates[:2]\n"
        "with opened(Path(sys.argv[1])) as study:\n"
        "    study.ask(empty(), first)\n"
        "    history = tell(study, empty(), LANDSCAPE.outcome(first))\n"
        "    study.ask(history, second)\n"
        "    os._exit(137)\n"
    )
    root = Path(__file__).parents[4]
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
        assert study._home.study.best_trial.number == 0


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


def test_a_trial_that_somebody_ended_from_a_dashboard_is_stored_as_it_ended(
    tmp_path: Path,
) -> None:
    smallest = LANDSCAPE.space.candidates[0]
    with opened(tmp_path / "study.db") as study:
        study.ask(empty(), smallest)
        study._home.study.tell(0, state=TrialState.FAIL)
        history = tell(study, empty(), LANDSCAPE.outcome(smallest))
        failed, added = stored(study)
    assert (failed.state, added.state) == (TrialState.FAIL, TrialState.COMPLETE)
    assert added.value == history.measured[0].measured.samples_per_s


def test_what_somebody_enqueued_is_served_if_it_is_open(tmp_path: Path) -> None:
    wished, other = LANDSCAPE.space.candidates[2], LANDSCAPE.space.candidates[0]
    with opened(tmp_path / "study.db", sampler="random") as study:
        study._home.study.enqueue_trial(study._axes.parameters(wished))
        study._home.study.enqueue_trial({"micro_batch_size": 5, "checkpointing": "no such"})
        study._home.study.enqueue_trial(study._axes.parameters(wished))
        assert study.ask(empty(), other) == wished
        history = tell(study, empty(), LANDSCAPE.outcome(wished))
        assert study.ask(history, other) == other, "5 is no candidate, and the wish is known"


def test_no_candidate_is_asked_for_when_all_are_known(tmp_path: Path) -> None:
    with opened(tmp_path / "study.db", sampler="random") as study:
        history = run_trials(study, empty(), 1000)
        assert history.open_candidates == ()
        assert study.ask(history) is None
    assert len(history.trials) < len(LANDSCAPE.space.candidates)


def test_a_claim_is_given_free_when_the_engine_ends_in_order(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with opened(path) as study:
        study.ask(empty(), LANDSCAPE.space.baseline)
        name = study.name
    assert [t.state.name for t in load(path, name)] == ["FAIL"]


def test_optuna_warns_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with opened(tmp_path / "study.db", sampler="gp") as study:
            run_trials(study, empty(), 6)
    assert [str(w.message) for w in caught if "optuna" in str(w.filename).lower()] == []
    assert capsys.readouterr() == ("", "")


def test_out_of_memory_keeps_its_bounds(tmp_path: Path) -> None:
    full = OutOfMemory(where="device", cause="full", needed_at_least_bytes=7, limit_bytes=6)
    with opened(tmp_path / "study.db") as study:
        study.ask(empty(), LANDSCAPE.space.baseline)
        tell(study, empty(), full)
        (trial,) = stored(study)
    assert trial.state is TrialState.PRUNED
    assert trial.user_attrs["trial"]["outcome"]["needed_at_least_bytes"] == 7
    assert trial.user_attrs["trial"]["outcome"]["limit_bytes"] == 6
