"""Logs that hold anything: text comes out, and memory stays bounded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing.shared import case_folder
from tests.tui import driving, stories
from tui.app import AutotuneApp
from tui.log_reader import FIRST_BYTES, MAX_LINE_CHARACTERS, MAX_LINES, LogNow, LogReader


def read_all(path: Path) -> LogNow:
    reader = LogReader(path)
    while reader.look() is not None:
        pass
    return reader.now


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    reader = LogReader(path)
    assert reader.look() is None
    assert not reader.now.is_there
    path.write_text("one\ntwo")
    assert looked(reader) == ("one", "two")
    with path.open("a") as file:
        file.write(" and a half\nthree\n")
    assert looked(reader) == ("one", "two and a half", "three")
    assert reader.look() is None
    path.write_text("anew\n")
    assert looked(reader) == ("anew",)


def looked(reader: LogReader) -> tuple[str, ...]:
    now = reader.look()
    assert now is not None
    return now.lines


def test_a_long_log_keeps_its_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_text("".join(f"line {number}\n" for number in range(MAX_LINES + 7)))
    now = read_all(path)
    assert len(now.lines) == MAX_LINES
    assert now.lines[-1] == f"line {MAX_LINES + 6}"
    assert now.num_dropped == 7
    path.write_bytes(b"x" * 99 + b"\n" + b"y" * 99 + b"\n" * 1)
    path.write_bytes((b"z" * 99 + b"\n") * (FIRST_BYTES // 50))
    assert read_all(path).starts_late


def test_a_log_says_whether_more_of_it_waits(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    reader = LogReader(path)
    path.write_bytes(b"x" * 99 + b"\n")
    assert looked(reader) == ("x" * 99,)
    assert not reader.has_more, "it may grow all the time, and is looked at as seldom as others"
    path.write_bytes((b"y" * 99 + b"\n") * 6000)
    waiting = []
    while reader.look() is not None:
        waiting.append(reader.has_more)
    assert waiting == [True, True, False]
    assert len(reader.now.lines) == MAX_LINES


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What the noisy job of the cases prints, both streams as a trial's log takes them."""
    script = case_folder("24-noisy-log-no-tty") / "train.py"
    ended = subprocess.run(
        [sys.executable, str(script)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"TERM": "dumb"},
        check=True,
    )
    return ended.stdout


def test_a_noisy_log_becomes_text(noisy: bytes, tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(noisy)
    lines = read_all(path).lines
    text = "\n".join(lines)
    assert not any(ord(character) < 32 and character != "\n" for character in text)
    assert "100%|####################|" in text
    assert "  5%|" not in text
    assert "red  screen cleared   mouse on  alt screen" in text
    assert "wide 漢字 and [bold]square brackets[/bold] [/nothing]" in text
    assert "{'loss': 0.5, 'step': 10}" in text
    assert lines[-1] == "last words without newline"
    assert max(map(len, lines)) < MAX_LINE_CHARACTERS + 10


def test_a_noisy_log_on_the_screen(noisy: bytes, tmp_path: Path) -> None:
    run = stories.make(tmp_path, "failed")
    (run.trial(2) / "output.log").write_bytes(noisy)
    app = AutotuneApp(run, unix_time=driving.clock)

    async def body(pilot: driving.Driver) -> None:
        await pilot.press("4", "l")
        await driving.shows(pilot, "last words without newline")
        assert "[bold]square brackets[/bold]" in driving.text(app)
        assert "following" in driving.text(app)
        await pilot.press("slash", *"loss", "enter")
        await driving.shows(pilot, "'loss' 1 of 2")
        await pilot.press("enter")
        await driving.shows(pilot, "'loss' 2 of 2")
        await pilot.press("escape", "G")
        await driving.shows(pilot, "following")

    driving.drive(app, (100, 24), body)


def test_another_trial_is_shown_where_one_is_chosen_while_a_log_is_open(tmp_path: Path) -> None:
    run = stories.make(tmp_path, "finished")
    app = AutotuneApp(run, unix_time=driving.clock)

    async def body(pilot: driving.Driver) -> None:
        await driving.shows(pilot, "samples/s")
        app.open_trial(2, log=True)
        await driving.shows(pilot, "#2 ")
        await pilot.press("3")
        await driving.shows(pilot, "events")
        app.chosen_trial = 1
        await pilot.press("4")
        await driving.until(pilot, lambda: driving.rows(app)[0].startswith(" autotune  4 trial #1"))
        await driving.until(
            pilot, lambda: any(row.lstrip().startswith("#1 ") for row in driving.rows(app))
        )

    driving.drive(app, (80, 24), body)


def test_a_log_stays_where_its_reader_scrolled_to(tmp_path: Path) -> None:
    run = stories.make(tmp_path, "running")
    log = run.trial(1) / "output.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    app = AutotuneApp(run, unix_time=driving.clock)

    async def body(pilot: driving.Driver) -> None:
        app.open_trial(1, log=True)
        await driving.shows(pilot, "line 99")
        await pilot.press("home")
        await driving.shows(pilot, "line 0")
        with log.open("a") as file:
            file.write("line 100\nline 101\n")
        await driving.shows(pilot, "2 new, end follows")
        assert "line 0" in driving.text(app)
        await pilot.press("end")
        await driving.shows(pilot, "line 101")
        await driving.shows(pilot, "following")

    driving.drive(app, (100, 24), body)


def test_a_long_line_says_that_it_goes_on_and_can_be_read(tmp_path: Path) -> None:
    run = stories.make(tmp_path, "finished")
    words = "".join(f"word{number:02d} " for number in range(40))
    (run.trial(2) / "output.log").write_text(f"short\n{words}\n")
    app = AutotuneApp(run, unix_time=driving.clock)

    def row(begin: str) -> str:
        return next(row for row in driving.rows(app) if row.lstrip().startswith(begin))

    async def body(pilot: driving.Driver) -> None:
        app.open_trial(2, log=True)
        await driving.shows(pilot, "word00")
        assert row("word00").rstrip().endswith("…")
        assert not row("short").rstrip().endswith("…")
        assert "w wraps" in driving.text(app)
        await pilot.press("w")
        await driving.shows(pilot, "word39")
        assert "…" not in row("word00")
        assert "w cuts" in driving.text(app)
        await pilot.press("w", "right")
        await driving.until(pilot, lambda: any("…" in r[:2] for r in driving.rows(app)))

    driving.drive(app, (60, 16), body)
