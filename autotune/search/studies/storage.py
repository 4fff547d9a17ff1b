"""Where a study is kept: how storages are opened, and what goes wrong with them."""

from __future__ import annotations

import random
import re
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
import sqlalchemy
from alembic.util.exc import CommandError
from optuna.storages import RDBStorage
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

LOCK_TIMEOUT_S = 5.0
"""How long another process may hold the study's file before it counts as locked."""
CONNECT_TIMEOUT_S = 5
"""How long a server may take to be reached."""
ANSWER_TIMEOUT_S = 20
"""How long it may be silent in the middle before it counts as away."""
STATEMENT_TIMEOUT_MS = 30_000
"""How long the server may work on one statement, or keep a transaction open that lies idle: an
engine that was stopped inside one would block all others."""
NUM_OPENINGS = 4
"""Engines that open a new storage at the same time hinder each other in making its tables."""

STORAGE_ERRORS: tuple[type[Exception], ...] = (
    SQLAlchemyError,
    sqlite3.Error,
    optuna.exceptions.OptunaError,
    OSError,
)
"""What a storage raises that cannot be used any more."""
ENDED_ERROR: type[Exception] = getattr(optuna.exceptions, "UpdateFinishedTrialError", RuntimeError)
"""What writing to a trial raises that was ended by somebody else."""
LOST_ERRORS: tuple[type[Exception], ...] = (*STORAGE_ERRORS, KeyError)
"""The same, where the study may also have been deleted."""
OPENING_ERRORS: tuple[type[Exception], ...] = (
    *STORAGE_ERRORS,
    CommandError,
    ImportError,
    AssertionError,
    KeyError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What opening and reading a storage raises that is damaged, locked or of another version."""

_CONNECT_ARGUMENTS: dict[str, dict[str, object]] = {
    "sqlite": {"timeout": ANSWER_TIMEOUT_S},
    "psycopg": {
        "connect_timeout": CONNECT_TIMEOUT_S,
        # Without it, a network that swallows packets would hold a statement for a quarter hour.
        "tcp_user_timeout": ANSWER_TIMEOUT_S * 1000,
        "application_name": "autotune",
    },
    "pymysql": {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": ANSWER_TIMEOUT_S,
        "write_timeout": ANSWER_TIMEOUT_S,
    },
}
_CONNECT_ARGUMENTS["psycopg2"] = _CONNECT_ARGUMENTS["psycopg"]
_CONNECT_ARGUMENTS["mysqldb"] = _CONNECT_ARGUMENTS["pymysql"]


def open_url(url: str) -> RDBStorage:
    """The storage behind a URL, its tables made where there are none.

    Raises:
        Exception: One of `OPENING_ERRORS`.
    """
    parsed = make_url(url)
    backend, driver = parsed.get_backend_name(), parsed.get_driver_name()
    given = _CONNECT_ARGUMENTS.get("sqlite" if backend == "sqlite" else driver, {})
    arguments = {name: value for name, value in given.items() if name not in parsed.query}
    for attempt in range(1, NUM_OPENINGS + 1):
        try:
            # Optuna fills in braces, which a password may hold.
            storage = RDBStorage(
                url.replace("{", "{{").replace("}", "}}"),
                engine_kwargs={"connect_args": arguments, "pool_pre_ping": True},
            )
            break
        except (SQLAlchemyError, optuna.exceptions.OptunaError, AssertionError) as error:
            if attempt == NUM_OPENINGS or not _is_a_race(error):
                raise
            time.sleep(random.uniform(0.1, 0.5) * attempt)
    if backend == "postgresql":
        sqlalchemy.event.listen(storage.engine, "connect", _set_time_limits)
        # Connections that were made before know no limits.
        storage.engine.dispose()
    return storage


def _is_a_race(error: BaseException) -> bool:
    """Whether another process made the same table or row this moment."""
    pattern = r"already exists|duplicate key|UNIQUE constraint"
    return isinstance(error, AssertionError) or bool(re.search(pattern, in_one_line(error)))


def _set_time_limits(connection: sqlalchemy.engine.interfaces.DBAPIConnection, _: object) -> None:
    cursor = connection.cursor()
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        cursor.execute(f"SET {name} = {STATEMENT_TIMEOUT_MS}")
    cursor.close()
    connection.commit()


def sqlite_storage(path: Path, lock_timeout_s: float = LOCK_TIMEOUT_S) -> RDBStorage:
    """The storage in a file, made where it does not exist.

    It is not flushed to disk: Optuna commits a dozen times a trial, and what a loss of power
    might cost is in the journal.

    Raises:
        Exception: One of `OPENING_ERRORS`.
    """

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=lock_timeout_s, check_same_thread=False)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    url = URL.create("sqlite", database=str(path))
    return RDBStorage(url.render_as_string(), engine_kwargs={"creator": connect})


def is_locked(error: BaseException) -> bool:
    """Whether another process holds the file."""
    return "is locked" in str(error)


def move_aside(path: Path) -> Path | None:
    """Renames a damaged file and drops what SQLite keeps beside it.

    Returns:
        The new path, or None where the directory does not allow it.
    """
    counter = 1
    while (aside := path.with_name(f"{path.name}.damaged-{counter}")).exists():
        counter += 1
    try:
        path.rename(aside)
        for suffix in ("-journal", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    except OSError:
        return None
    return aside


def in_one_line(error: BaseException) -> str:
    """The innermost cause of a storage's error, without what it quotes of SQL."""
    origin = error.__cause__ or error
    origin = getattr(origin, "orig", None) or origin
    lines = [line.strip() for line in str(origin).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(origin).__name__


@contextmanager
def quietly() -> Iterator[None]:
    """Keeps Optuna's warnings about its own interface from the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
