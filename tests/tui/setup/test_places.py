"""Files and directories that a field may name."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.testing import runs
from tui.setup import places
from tui.setup.places import completion, listed, shortened, split


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a model, data and other things."""
    (tmp_path / "minilm").mkdir()
    (tmp_path / "minilm" / "config.json").write_text("{}")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_info.json").write_text("{}")
    (tmp_path / "plain").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ("reviews.csv", "Reviews-long.csv.gz", "notes.docx"):
        (tmp_path / name).write_text("x" * 2048)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_listed_depends_on_what_is_wanted(here: Path) -> None:
    found = [(p.name, p.is_directory, p.note, p.is_whole) for p in listed(here, "dataset")]
    assert found == [
        ("minilm", True, "", False),
        ("plain", True, "", False),
        ("saved", True, "saved dataset", True),
        ("Reviews-long.csv.gz", False, "2.00 KiB", True),
        ("reviews.csv", False, "2.00 KiB", True),
    ]
    models = [(p.name, p.note) for p in listed(here, "model")]
    assert models == [("minilm", "model"), ("plain", ""), ("saved", "")]
    assert [p.name for p in listed(here, "directory")] == ["minilm", "plain", "saved"]
    with pytest.raises(FileNotFoundError):
        listed(here / "nowhere", "model")


def test_a_beginning_is_completed(here: Path) -> None:
    assert completion("rev", "dataset") == "reviews-long.csv.gz"
    assert completion("reviews.c", "dataset") == "reviews.csv"
    assert completion("mini", "model") == "minilm", "a model is whole"
    assert completion("pla", "model") == "plain/", "a directory goes on"
    assert completion(f"{here}/sav", "dataset") == f"{here}/saved"
    assert completion("nothing", "dataset") is None
    assert completion("plain/", "dataset") is None
    assert completion("nowhere/x", "dataset") is None


def test_paths_are_written_as_somebody_would_type_them(here: Path) -> None:
    assert shortened(here / "minilm") == "minilm"
    assert shortened(Path("plain/../minilm")) == "minilm"
    assert shortened(Path("/")) == "/"
    assert shortened(Path("..")) == str(here.parent)
    assert split("a/b") == (Path("a"), "b")
    assert split("a/") == (Path("a"), "")
    assert split("") == (Path(), "")


def test_what_is_half_typed_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    assert places.path_of("~/models") == tmp_path / "models"
    # Nobody is called so: as little is found as in any other place that is not there.
    assert places.completion("~nobody-is-called-so", "model") is None
    assert places.split("~nobody-is-called-so/x") == (Path("~nobody-is-called-so"), "x")
    assert places.completion("~/mod", "model") == "~/models/"
    assert places.completion("mod\0", "model") is None


def test_runs_are_listed_newest_first_or_it_is_told_why_not(tmp_path: Path) -> None:
    for number, name in enumerate(("early", "late")):
        run = runs.write_run(tmp_path / "runs", name, [])
        os.utime(run.request, (number, number))
    found, why = places.runs_in(tmp_path / "runs")
    assert ([run.name for run in found], why) == (["late", "early"], "")
    assert places.runs_in(tmp_path / "none") == ([], f"There is no run in {tmp_path / 'none'} yet.")
    with patch.object(Path, "iterdir", side_effect=PermissionError(13, "Permission denied")):
        found, why = places.runs_in(tmp_path / "runs")
    assert (found, why) == (
        [],
        f"The directory {tmp_path / 'runs'} cannot be read: Permission denied.",
    )
