"""Every public docstring has an example, and every example does what it says."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.export.document import as_json
from tests.testing import examples, live
from tests.testing.recommendations import document


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


def test_every_public_docstring_has_an_example() -> None:
    without = [name for name, value in documented() if not examples.of(name, value, {}).examples]
    assert without == []


@pytest.mark.parametrize(
    ("name", "value"),
    # The one of `tune` is run where there is a finished run that its job is known from.
    [pytest.param(name, value, id=name) for name, value in documented() if name != "tune"],
)
def test_an_example_does_what_it_says(
    name: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    path = tmp_path / "sample.json"
    path.write_text(as_json(document()))
    options: dict[str, Any] = {"gradient_accumulation_steps": 8} if ".apply" in name else {}
    names = {
        "autotune": autotune,
        "recommendation": autotune.load(path),
        "trainer": live.trainer(tmp_path, **options),
        "path_to_recommendation": path,
    }
    examples.run(examples.of(name, value, names))
