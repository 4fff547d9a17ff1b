"""What `autotune tui` hands to the form: typed values, and those of a file or a variable."""

from __future__ import annotations

import itertools
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
    monkeypatch.setattr(output, "why_no_screen", lambda otherwise: None)
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


def test_a_zero_is_a_value_like_any_other(shown: list[list[str]]) -> None:
    words = ("--lora-rank", "0", "--seed", "0", "--total-steps", "0", "--lora-dropout", "0")
    fields = ("--trials", "0", "--processes", "0")
    assert main(["tui", "--model", "m", "--dataset", "d", *words, *fields]) == 0
    form = JobForm.from_json(shown[0][shown[0].index("--setup") + 1])
    given = dict(itertools.pairwise(form.words()))
    assert {given[name] for name in words[::2]} == {"0", "0.0"}
    assert (given["--trials"], given["--processes"]) == ("0", "0")
    assert "--packing" not in form.words(), "a switch that is off is none"


def test_a_zero_that_an_option_forbids_is_refused_with_the_reason(
    shown: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tui", "--demo", "--total-steps", "0"]) == 0
    form = JobForm.from_json(shown[0][shown[0].index("--setup") + 1])
    assert main(["plan", *form.words(), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["cause"] == "--total-steps must be at least 1, not 0."
    assert form.fault(error["cause"], error["remedy"]).field == "more", "where it was typed"


def test_a_run_has_its_job_already(
    shown: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs.write_run(tmp_path / "autotune-runs", "one", runs.searching("one"))
    assert main(["tui", "one", "--model", "m", "--trials", "9", "--theme", "light"]) == 2
    assert capsys.readouterr().err == (
        "Error: The run 'one' has its job already, and --model, --trials would change nothing of "
        "it.\n"
        "Hint: Leave that out to look at the run, or leave RUN out to set up another job.\n"
    )
    assert shown == []
    # What a file or a variable says is meant for whatever reads it.
    monkeypatch.setenv("AUTOTUNE_TRIALS", "9")
    assert main(["tui", "one", "--run-dir", "autotune-runs", "--no-mouse"]) == 0
    monkeypatch.delenv("AUTOTUNE_TRIALS")
    assert main(["tui"]) == 0
    assert len(shown) == 2
    assert all("--setup" not in look for look in shown)
