"""Where files may go, found out before anything is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.delivery import check_out
from autotune.errors import UsageError


def test_a_place_that_is_free_will_do(tmp_path: Path) -> None:
    check_out(tmp_path / "new" / "deeper", run=None, force=False)
    (tmp_path / "notes.txt").write_text("mine")
    check_out(tmp_path, run=None, force=False)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_files_that_somebody_else_wrote_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text("mine")
    with pytest.raises(UsageError, match=r"that autotune did not write: trainer\.py"):
        check_out(tmp_path, run="job", force=False)
    check_out(tmp_path, run="job", force=True)


def test_only_a_runs_own_files_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "recommendation.json").write_text(json.dumps({"run": "other"}))
    with pytest.raises(UsageError, match="of run 'other'"):
        check_out(tmp_path, run="job", force=False)
    check_out(tmp_path, run="other", force=False)


def test_a_file_in_the_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="is a file"):
            check_out(place, run=None, force=False)
