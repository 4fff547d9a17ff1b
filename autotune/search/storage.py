"""How a study is named and where it is kept, and what goes wrong with storages."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import optuna
from alembic.util.exc import CommandError
from optuna.storages import RDBStorage
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

LOCK_TIMEOUT_S = 5.0
"""How long another process may hold the study's file before it counts as locked."""

SCHEMA = 1
"""Of what a study holds: another number makes other names."""

STORAGE_ERRORS: tuple[type[Exception], ...] = (
    SQLAlchemyError,
    sqlite3.Error,
    optuna.exceptions.OptunaError,
    OSError,
)
"""What a storage raises that cannot be used any more."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyIdentity:
    """What must be the same for two runs to share a study."""

    stem: str
    """Name of the workload, for readers."""
    parts: Mapping[str, str]
    """A digest each of the space, the workload, the machine, …, by these words."""

    @property
    def readable_stem(self) -> str:
        """The workload's name as far as a study's name can hold it."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.stem).strip("-.")[:64] or "study"

    @property
    def name(self) -> str:
        """The study's name: the workload and a digest of all parts."""
        text = json.dumps([SCHEMA, dict(self.parts)], sort_keys=True)
        return f"{self.readable_stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


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
    origin = getattr(error, "orig", None) or error.__cause__ or error
    lines = str(origin).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(origin).__name__


def without_password(url: str) -> str:
    """A storage URL that can be shown."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)
