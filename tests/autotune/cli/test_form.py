"""What `autotune tui` hands to the form: typed values, and those of a file or a variable."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.cli import screen
from autotune.cli.app import main
from autotune.display import output
from autotune.run_directory import RunDirectory
from tests.testing import runs
from tui.setup.form import Inherited, JobForm


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Options of every UI that was started, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "can_take_screen", lambda: True)
    started: list[list[str]] = []

    def show(directory: RunDirectory | None, *, look: Sequence[str], invocation: object) -> int:
        started.append(list(look))
        return 0

    monkeypatch.setattr(screen, "show", show)
    return started


def test_a_form_begins_with_what_is_given(
    shown: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "autotune.toml").write_text('memory-limit = "6GiB"\nlora-rank = 8\n')
    monkeypatch.setenv("AUTOTUNE_TRIALS", "9")
    words = ("--model", "m", "--dataset", "d.csv", "--packing", "--processes", "2", "--name", "n")
    assert main(["tui", *words]) == 0
    text = shown[0][shown[0].index("--setup") + 1]
    assert JobForm.from_json(text) == JobForm(
        values={
            "model": "m",
            "dataset": "d.csv",
            "processes": "2",
            "name": "n",
            "more": "--packing",
        },
        inherited={
            "memory_limit": Inherited("6GiB", "autotune.toml"),
            "trials": Inherited("9", "AUTOTUNE_TRIALS"),
        },
    )
    assert set(json.loads(text)["inherited"]) == {"memory_limit", "lora_rank", "trials"}


def test_a_run_has_its_form_already(shown: list[list[str]], tmp_path: Path) -> None:
    runs.write_run(tmp_path / "autotune-runs", "one", runs.searching("one"))
    assert main(["tui", "one", "--model", "m"]) == 0
    assert main(["tui"]) == 0
    assert all("--setup" not in look for look in shown)
