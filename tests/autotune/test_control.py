from __future__ import annotations

from pathlib import Path

import pytest

from autotune.control import ControlRequest, send, take


def test_requests_are_taken_once_in_their_order(tmp_path: Path) -> None:
    control = tmp_path / "control"
    send(control, "hold")
    send(control, "note", "look at this")
    send(control, "stop", "SIGINT")
    assert take(control) == [
        ControlRequest(verb="hold"),
        ControlRequest(verb="note", text="look at this"),
        ControlRequest(verb="stop", text="SIGINT"),
    ]
    assert take(control) == []
    assert [*control.iterdir()] == []


def test_what_is_no_request_is_thrown_away(tmp_path: Path) -> None:
    for name, text in {
        "1.json": "{ broken",
        "2.json": "[]",
        "3.json": '{"verb": "explode"}',
        "4.json": '{"verb": "stop"}',
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "not-ours.txt").write_text("stays")
    assert take(tmp_path) == [ControlRequest(verb="stop")]
    assert [path.name for path in tmp_path.iterdir()] == ["not-ours.txt"]


def test_no_directory_holds_no_request(tmp_path: Path) -> None:
    assert take(tmp_path / "missing") == []


def test_a_run_that_is_gone_is_not_made_anew_by_a_request(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        send(tmp_path / "gone" / "control", "hold")
    assert [*tmp_path.iterdir()] == []
