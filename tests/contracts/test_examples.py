"""Every public docstring has an example, and every example does what it says."""

from __future__ import annotations

import doctest
import inspect
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import autotune
from autotune.export.document import as_json
from tests.testing import live
from tests.testing.recommendations import document

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def documented() -> Iterator[tuple[str, object]]:
    """Public classes and functions, and the public members that they define themselves."""
    for name in autotune.__all__:
        value = getattr(autotune, name)
        if not inspect.isclass(value) and not inspect.isfunction(value):
            continue
        yield name, value
        for member, defined in vars(value).items() if inspect.isclass(value) else ():
            is_code = isinstance(defined, property | classmethod) or inspect.isfunction(defined)
            if is_code and not member.startswith("_"):
                yield f"{name}.{member}", defined


def _docstring(value: object) -> str:
    inner = value.fget if isinstance(value, property) else value
    return inspect.getdoc(getattr(inner, "__func__", inner)) or ""


@pytest.mark.parametrize(
    ("name", "value"), [pytest.param(name, value, id=name) for name, value in documented()]
)
def test_a_public_docstring_has_an_example_that_runs(
    name: str,
    value: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    text = _docstring(value)
    path = tmp_path / "sample.json"
    path.write_text(as_json(document()))
    names = {
        "autotune": autotune,
        "recommendation": autotune.load(path),
        "trainer": live.trainer(tmp_path),
        "path_to_recommendation": path,
    }
    if name == "tune":
        # The example's job was tuned before; its answer is known.
        shutil.copytree(request.getfixturevalue("tuned").directory / "runs", "autotune-runs")
    if ".apply" in name:
        names["trainer"] = live.trainer(tmp_path, gradient_accumulation_steps=8)
    examples = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert examples.examples, f"{name} has no example"
    failures: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(examples, out=failures.append)
    assert not failures, "".join(failures)
