"""Files and directories that a field may name."""

from __future__ import annotations

from pathlib import Path

import pytest

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
