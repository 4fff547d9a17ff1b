from __future__ import annotations

import subprocess
import sys

import pytest

import autotune

PUBLIC = {
    "AutotuneError",
    "Budget",
    "Checkpointing",
    "Configuration",
    "FusedLocalSGD",
    "Goal",
    "LocalSGDCallback",
    "NothingFeasible",
    "Recommendation",
    "Unconfirmed",
    "UsageError",
    "WorkloadError",
    "__version__",
    "load",
    "tune",
}
"""What others build on: a name is added on purpose, and none is taken away."""


def test_every_public_name_is_there_and_no_other_is_shown() -> None:
    assert {*autotune.__all__} == PUBLIC
    for name in autotune.__all__:
        assert getattr(autotune, name) is not None
    assert {*autotune.__all__} <= {*dir(autotune)}
    assert len(autotune.__all__) == len({*autotune.__all__})


def test_public_names_are_lazy_and_known_to_type_checkers() -> None:
    assert {*autotune._HOMES} | {"__version__"} == {*autotune.__all__}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = autotune.nothing


def test_importing_the_package_loads_nothing() -> None:
    code = (
        "import sys; before = {*sys.modules}; import autotune; "
        "new = {name.split('.')[0] for name in {*sys.modules} - before}; "
        "print(sorted(new - {*sys.stdlib_module_names}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "['autotune']"
