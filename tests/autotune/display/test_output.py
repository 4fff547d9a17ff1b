from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from autotune.display import output
from autotune.errors import AutotuneError, UsageError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;new title\x07 text", " text"),
        ("\x1b[2J\x1b[H\x1b[?1049h\x1b[?1003h cleared", " cleared"),
        (" 10%|#\r 50%|##\r100%|###\n", "100%|###\n"),
        ("windows\r\nlines\r\n", "windows\nlines\n"),
        ("bell\x07 back\x08space", "bell backspace"),
        ("[bold]brackets[/bold] [/nothing]", "[bold]brackets[/bold] [/nothing]"),
        ("right\u202eto left", "rightto left"),
        ("cut escape \x1b", "cut escape "),
    ],
)
def test_no_code_reaches_the_terminal(text: str, shown: str) -> None:
    assert output.plain_text(text) == shown


def test_a_message_becomes_one_line() -> None:
    assert output.one_line("first\n\n  second\tthird\r\n") == "first second third"
    assert output.one_line("a" * 50, max_characters=10) == "a" * 9 + "…"


def test_a_stream_that_lacks_glyphs_gets_their_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding="ascii"))
    output.prepare_streams()
    output.talk("✓ 16×4 – done … 漢")
    assert raw.getvalue() == b"+ 16x4 - done ... ?\n"


@pytest.mark.parametrize(
    ("variables", "is_terminal", "wanted"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "FORCE_COLOR": "1"}, False, True),
        ({"TERM": "xterm", "FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_colour_follows_the_variables(
    variables: dict[str, str], is_terminal: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal, raising=False)
    assert output.wants_colour(stream) is wanted


def test_an_error_is_a_cause_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    output.report(UsageError("The column\n'txt' is missing.", "Did you mean 'text'?"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "Error: The column 'txt' is missing.\nHint: Did you mean 'text'?\n"


def test_a_closed_pipe_silences_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        output.data("nobody reads this")
        output.data("nor this")
        # What the stream writes from now on, its closing flush included, goes nowhere.
        assert os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_result_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(AutotuneError, match="cannot be written to stdout"):
            output.data("lost")


def test_streams_that_were_closed_before_the_start_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk = io.StringIO()
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", talk)
    output.prepare_streams()
    output.data("nobody reads this")
    output.report(AutotuneError("cause", "remedy"))
    output.flush()
    assert talk.getvalue() == "Error: cause\nHint: remedy\n", (
        "the other stream is written all the same"
    )
    assert not output.is_terminal(None)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_document_stays_true_in_every_encoding(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    output.prepare_streams()
    told = {"path": "/größe/漢", "undecodable": os.fsdecode(b"/\xff")}
    output.document(told)
    assert json.loads(raw.getvalue()) == told
