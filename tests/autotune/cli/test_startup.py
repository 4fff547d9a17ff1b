from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli import startup
from autotune.cli.startup import check_installation
from autotune.errors import AutotuneError


def test_our_own_packages_pass() -> None:
    check_installation()


def test_a_package_that_is_not_installed_is_not_missed(tmp_path: Path) -> None:
    check_installation(home=tmp_path)


def test_a_stranger_of_the_same_name_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name in startup._SIBLINGS:
        (home / name).mkdir(parents=True)
        (home / name / "__init__.py").touch()
    with pytest.raises(AutotuneError, match="Another package called 'probes' hides ours") as caught:
        check_installation(home=home)
    assert str(home / "probes" / "__init__.py") in caught.value.cause
    assert "virtual environment" in (caught.value.remedy or "")


def test_a_command_refuses_to_start_with_a_stranger(tmp_path: Path) -> None:
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes" / "__init__.py").write_text("")
    code = (
        "import sys; sys.path.insert(0, ''); "
        "from autotune.cli.app import main; sys.exit(main(['runs']))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert found.returncode == 1
    assert f"Python finds {tmp_path / 'probes' / '__init__.py'}" in found.stderr
    assert "Traceback" not in found.stderr
