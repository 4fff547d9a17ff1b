"""Says what is wrong with a storage that cannot be opened, and what to do about it."""

from __future__ import annotations

import importlib.util
import re

from optuna.storages import RDBStorage
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from autotune.errors import UsageError
from autotune.search.studies.storage import OPENING_ERRORS, in_one_line, open_url, quietly
from autotune.storage_url import scrubbed, shown

_FORM = "sqlite:///studies.db or postgresql+psycopg://user@host/database"
_EXTRAS = {"psycopg": "'autotune-advisor[postgresql]'"}
"""Extras of this project that bring a driver."""

_REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"password authentication failed|no password supplied|Access denied",
        "Check user and password. The password is written down nowhere, so a resumed run needs "
        "--storage or AUTOTUNE_STORAGE again; for PostgreSQL, PGPASSWORD and ~/.pgpass do as well.",
    ),
    (
        r'database "?[^"]*"? does not exist|Unknown database',
        "Make the database first, for example with createdb, or name another one.",
    ),
    (r'role "[^"]*" does not exist', "Make the user first, or name another one."),
    (
        r"refused|timeout|timed out|translate host|resolve host|not known|unreachable|"
        r"No such file|starting up|shutting down|Can't connect",
        "See that the server runs, and that this machine reaches it under that name and port.",
    ),
    (r"unable to open database file", "Make the directory of the file, or name another one."),
    (r"is locked", "Wait for the process that holds the file, or take a server for several."),
    (
        r"no longer compatible with the table schema",
        "Upgrade it by `optuna storage upgrade --storage …`, or install the Optuna that made it.",
    ),
    (r"not a database", "Name another file, or move this one away."),
    (r"permission denied|readonly", "Give the user the right to make and write tables there."),
)


def open_or_explain(url: str) -> RDBStorage:
    """The storage behind a URL that a user gave.

    Raises:
        UsageError: It cannot be opened; cause and remedy say why, and show no password.
    """
    with quietly():
        try:
            return open_url(url)
        except OPENING_ERRORS as error:
            raise fault_of(url, error) from None


def check(url: str | None) -> None:
    """Opens a storage and closes it again, so that what is wrong is said before anything starts.

    Args:
        url: None is fine.

    Raises:
        UsageError: It cannot be opened.
    """
    if url is not None:
        storage = open_or_explain(url)
        storage.remove_session()
        storage.engine.dispose()


def fault_of(url: str, error: BaseException) -> UsageError:
    """The error to show for one that opening the storage raised."""
    name = shown(url)
    said = scrubbed(in_one_line(error), url)
    if isinstance(error, ImportError):
        return _missing_driver(name, error)
    if isinstance(error, NoSuchModuleError):
        kind = name.split(":", 1)[0]
        return UsageError(
            f"The storage {name} cannot be opened: there is no kind of database called {kind!r}.",
            f"Give --storage a database that Optuna can open, such as {_FORM}.",
        )
    if isinstance(error, ArgumentError):
        return UsageError(
            f"The storage {name} is no database URL.",
            f"Give --storage one such as {_FORM}, or leave it out.",
        )
    remedy = next((r for pattern, r in _REMEDIES if re.search(pattern, said, re.IGNORECASE)), None)
    return UsageError(
        f"The storage {name} cannot be opened ({said}).",
        remedy or f"Give --storage a database that Optuna can open, such as {_FORM}.",
    )


def _missing_driver(name: str, error: ImportError) -> UsageError:
    cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
    module = (cause.name or "").split(".")[0]
    package = _EXTRAS.get(module) or {"MySQLdb": "mysqlclient"}.get(module, module) or "the driver"
    remedy = f"Install it by: python -m pip install {package}."
    if module == "psycopg2" and importlib.util.find_spec("psycopg") is not None:
        remedy = "Begin the URL with postgresql+psycopg://, whose driver is installed."
    return UsageError(
        f"The storage {name} cannot be opened: its driver {module or ''} is not installed.".replace(
            "  ", " "
        ),
        remedy,
    )
