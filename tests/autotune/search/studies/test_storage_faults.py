"""Storages that cannot be opened: cause, remedy, exit code 2, no password, and before anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune import starting
from autotune.errors import ExitCode, UsageError
from autotune.events import StudyOpened
from autotune.folding import fold
from autotune.journal import read
from autotune.run_directory import RunDirectory
from autotune.search.studies.storage_faults import check
from tests.testing import postgresql
from tests.testing.runs import demo_request
from tests.testing.studies import (
    Warnings,
    empty,
    numbers,
    opened,
    run_trials,
    stored,
    wait_for_return,
)


@pytest.mark.parametrize(
    ("url", "cause", "remedy"),
    [
        ("studies.db", "is no database URL", "sqlite:///studies.db"),
        ("nosuchdb://me:secret@host/s", "no kind of database called 'nosuchdb'", "sqlite:///"),
        ("sqlite:////no/such/place/s.db", "unable to open database file", "Make the directory"),
        ("mysql+pymysql://me:secret@host/s", "its driver pymysql is not", "pip install pymysql"),
        ("mysql://me:secret@host/s", "its driver MySQLdb is not", "pip install mysqlclient"),
    ],
)
def test_what_is_wrong_is_said_with_a_remedy(url: str, cause: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(url)
    assert caught.value.exit_code == ExitCode.USAGE
    assert cause in caught.value.cause
    assert remedy in (caught.value.remedy or "")
    assert "secret" not in str(caught.value)


def test_a_missing_driver_of_postgresql_is_an_extra_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(UsageError) as caught:
        check("postgresql+psycopg://me@127.0.0.1:1/studies")
    assert "its driver psycopg is not installed" in caught.value.cause
    assert "'autotune-advisor[postgresql]'" in (caught.value.remedy or "")


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("this is no database\n" * 200)
    with pytest.raises(UsageError, match="file is not a database"):
        check(f"sqlite:///{path}")


def test_no_storage_is_fine_and_a_new_file_is_made(tmp_path: Path) -> None:
    check(None)
    check(f"sqlite:///{tmp_path / 'new.db'}")
    assert (tmp_path / "new.db").exists()


def test_a_storage_that_is_gone_when_the_study_is_opened_is_tried_again_later(
    tmp_path: Path,
) -> None:
    place = tmp_path / "later"
    told, said = Warnings(), list[StudyOpened]()
    url = f"sqlite:///{place}/studies.db"
    with opened(tmp_path / "unused.db", storage=url, told=told, said=said) as study:
        history = run_trials(study, empty(), 1)
        place.mkdir()
        wait_for_return(study)
        run_trials(study, history, 1)
        assert numbers(stored(study)) == [0, 1]
    assert [s.again for s in said] == [True]
    assert len(told) == 1
    assert "unable to open database file" in told[0][0]


def test_the_engine_says_it_before_it_probes_and_writes_no_password(tmp_path: Path) -> None:
    request = replace(demo_request(), storage="mysql+pymysql://me:geheim@host/studies")
    run = starting.prepare(request, tmp_path, "job", fresh=False, resume=False)
    engine = starting.start_engine(run, starting.engine_environment(request))
    assert engine.wait(timeout=120) == ExitCode.USAGE
    view = fold(read(run.journal))
    assert view.machine is None
    assert view.ended is not None
    assert "mysql+pymysql://me:***@host/studies" in (view.ended.cause or ""), "it had the password"
    assert "pip install pymysql" in (view.ended.remedy or "")
    for path in run.path.rglob("*"):
        assert path.is_dir() or b"geheim" not in path.read_bytes(), path


@pytest.mark.skipif(postgresql.why_not() is not None, reason=str(postgresql.why_not()))
def test_postgresql_says_which_part_is_wrong() -> None:
    with postgresql.server() as server:
        database = server.new_database()
        check(server.url(database))
        cases = {
            server.url(database, password="falsch-4711"): ("password authentication", "PGPASSWORD"),
            server.url(database, user="nobody-else"): ("password authentication failed", "Check"),
            server.url("no_such"): ('database "no_such" does not exist', "createdb"),
            server.url(database).replace("127.0.0.1", "no.such.host.invalid"): ("", "See that"),
        }
        for url, (cause, remedy) in cases.items():
            with pytest.raises(UsageError) as caught:
                check(url)
            assert cause in caught.value.cause
            assert remedy in (caught.value.remedy or "")
            assert "falsch" not in str(caught.value)
            assert postgresql.PASSWORD not in str(caught.value)
        url = server.url(database)
    with pytest.raises(UsageError, match="refused") as caught:
        check(url)
    assert "See that the server runs" in (caught.value.remedy or "")


def test_a_run_that_is_resumed_may_be_given_its_password_again(tmp_path: Path) -> None:
    from autotune import request as requests
    from autotune import storage_url

    url = "postgresql+psycopg://me:geheim@host/studies"
    run = starting.prepare(
        replace(demo_request(), storage=url), tmp_path, "job", fresh=False, resume=False
    )
    stored = requests.load(RunDirectory(run.path))
    assert stored.storage == "postgresql+psycopg://me@host/studies"
    assert starting.engine_environment(stored, {})[storage_url.VARIABLE] == stored.storage
    given = {storage_url.VARIABLE: url}
    assert starting.engine_environment(stored, given)[storage_url.VARIABLE] == url
