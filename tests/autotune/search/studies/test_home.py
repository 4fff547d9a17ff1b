"""Where a study lives: damaged, locked and lost homes cost a warning, and no trial."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from autotune.events import StudyOpened
from tests.testing.studies import (
    LANDSCAPE,
    Warnings,
    empty,
    identity,
    load,
    numbers,
    opened,
    run_trials,
    states,
    stored,
    tell,
    wait_for_return,
)


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


def test_a_shared_storage_that_is_lost_is_returned_to_with_everything_that_was_found_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shared.db"
    url = f"sqlite:///{path}?timeout=0.05"
    told, said = Warnings(), list[StudyOpened]()
    with (
        opened(tmp_path / "unused.db", storage=url, run="other", host="node2") as other,
        opened(tmp_path / "unused.db", storage=url, told=told, said=said) as study,
    ):
        run_trials(other, empty(), 1)
        (arrival,) = study.arrivals(empty())
        assert arrival.configuration == LANDSCAPE.space.candidates[0]
        first = LANDSCAPE.space.candidates[1]
        study.ask(empty(), first)
        history = tell(study, empty(), LANDSCAPE.outcome(first))
        holder = sqlite3.connect(path)
        try:
            holder.execute("BEGIN EXCLUSIVE")
            second = LANDSCAPE.space.candidates[5]
            assert study.ask(history, second) == second, "the run goes on alone"
            assert study.held() == {}
        finally:
            holder.close()
        wait_for_return(study)
        history = tell(study, history, LANDSCAPE.outcome(second), second)
        assert [t.user_attrs["trial"]["run"] for t in stored(study)] == ["other", "run-1", "run-1"]
        assert "RUNNING" not in states(study)
        third = LANDSCAPE.space.candidates[2]
        study.ask(history, third)
        tell(study, history, LANDSCAPE.outcome(third))
        assert len(stored(other)) == 4
    ((cause, remedy),) = told
    assert "database is locked" in cause
    assert "joins the others again" in (remedy or "")
    assert [(s.again, s.num_trials, s.hosts) for s in said] == [
        (False, 0, ()),
        (True, 1, ("node2",)),
    ]
    assert len(load(path, identity(empty(), machine="m").name)) == 4


def test_a_study_that_somebody_deletes_is_lost_and_made_again(tmp_path: Path) -> None:
    import optuna

    url = f"sqlite:///{tmp_path / 'shared.db'}"
    told = Warnings()
    with opened(tmp_path / "unused.db", storage=url, told=told) as study:
        history = run_trials(study, empty(), 2)
        optuna.delete_study(study_name=study.name, storage=url)
        history = run_trials(study, history, 1)
        history = run_trials(study, history, 1)
        assert numbers(stored(study)) == [0, 1, 2, 3]
        assert study._home.is_shared
    assert len(told) == 1
