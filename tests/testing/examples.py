"""Runs the examples in docstrings."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Mapping

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def of(name: str, value: object, names: Mapping[str, object]) -> doctest.DocTest:
    """The examples of a function, class, method or property, which may use these names."""
    inner = value.fget if isinstance(value, property) else value
    text = inspect.getdoc(getattr(inner, "__func__", inner)) or ""
    return doctest.DocTestParser().get_doctest(text, dict(names), name, None, None)


def run(examples: doctest.DocTest) -> None:
    """Runs them; an AssertionError shows what came out differently."""
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(examples, out=failures.append)
    assert not failures, "".join(failures)
