"""Storage URLs: passwords are recognised wherever they stand, and nothing else is."""

from __future__ import annotations

import pytest

from autotune.storage_url import VARIABLE, scrubbed, shown, with_password, without_password


@pytest.mark.parametrize(
    ("url", "visible", "bare"),
    [
        ("sqlite:///studies.db", "sqlite:///studies.db", "sqlite:///studies.db"),
        (
            "sqlite:///C:/a@b/studies.db",
            "sqlite:///C:/a@b/studies.db",
            "sqlite:///C:/a@b/studies.db",
        ),
        ("db://me@host:5432/s", "db://me@host:5432/s", "db://me@host:5432/s"),
        ("db://host:5432/s", "db://host:5432/s", "db://host:5432/s"),
        ("db://me:pass@host:5432/s", "db://me:***@host:5432/s", "db://me@host:5432/s"),
        ("db://me:p@ss@host/s", "db://me:***@host/s", "db://me@host/s"),
        ("db://me:pa/ss@host/s", "db://me:***@host/s", "db://me@host/s"),
        ("db://me:pw@host/s?x=a@b", "db://me:***@host/s?x=a@b", "db://me@host/s?x=a@b"),
        (
            "db:///s?host=/run&password=secret&x=1",
            "db:///s?host=/run&password=***&x=1",
            "db:///s?host=/run&x=1",
        ),
        ("db:///s?password=secret", "db:///s?password=***", "db:///s"),
    ],
)
def test_passwords_are_hidden_or_taken_out(url: str, visible: str, bare: str) -> None:
    assert shown(url) == visible
    assert without_password(url) == bare


def test_a_password_is_put_back_only_into_its_own_url() -> None:
    full = "db://me:secret@host/s"
    assert with_password("db://me@host/s", {VARIABLE: full}) == full
    assert with_password("db://me@other/s", {VARIABLE: full}) == "db://me@other/s"
    assert with_password("db://me@host/s", {}) == "db://me@host/s"
    assert with_password(None, {VARIABLE: full}) is None


def test_an_error_is_scrubbed_of_every_form_of_the_password() -> None:
    url = "db://me:p%40ssword@word@host/s?sslpassword=deep"
    said = "no host word@host for p@ssword, p%40ssword or deep"
    assert scrubbed(said, url) == "no host ***@host for ***, *** or ***"
