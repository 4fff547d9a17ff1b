from __future__ import annotations

from pathlib import Path

import pytest

from autotune.trial import logs
from autotune.trial.logs import end_of, tail


def test_a_log_is_read_from_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert (end_of(path), tail(path)) == (0, "")
    assert (end_of(None), tail(None)) == (0, "")
    path.write_text("before\n")
    start = end_of(path)
    assert start == 7
    assert tail(path, start) == ""
    with path.open("ab") as file:
        file.write(b"after \xff\n")
    assert tail(path, start) == "after \ufffd\n"
    assert tail(path) == "before\nafter \ufffd\n"


def test_only_the_end_of_a_long_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "TAIL_BYTES", 4)
    path = tmp_path / "log"
    path.write_text("0123456789")
    assert tail(path) == "6789"
    assert tail(path, 8) == "89"
    assert tail(path, 2) == "6789"
