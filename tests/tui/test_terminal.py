"""The UI on a real terminal: signals, keys, sizes, and what is left afterwards."""

from __future__ import annotations

import base64
import contextlib
import os
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune import journal, lease
from autotune.folding import fold
from autotune.run_directory import RunDirectory
from autotune.view import RunView
from tests.testing.terminal import Terminal
from tests.tui import stories

TUNE = ("tune", "--demo", "--tui", "--name", "one")
ON_SCREEN = "Help"
"""A word of the footer, which is painted last."""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where the command line works; no engine survives the test."""
    yield tmp_path
    for path in (tmp_path / "autotune-runs").glob("*"):
        held = lease.read(RunDirectory(path).lease)
        if held is not None and held.is_alive and held.process != os.getpid():
            os.kill(held.process, signal.SIGKILL)


def opened(directory: Path, *arguments: str, story: str = "slow") -> Terminal:
    """The command line, once its engine runs a trial and the UI shows it."""
    terminal = Terminal(directory, story, *arguments)
    terminal.read_until(ON_SCREEN)
    if story == "slow":
        terminal.read_until("running")
    return terminal


def run_of(directory: Path) -> RunDirectory:
    return RunDirectory(directory / "autotune-runs" / "one")


def view_of(directory: Path) -> RunView:
    return fold(journal.read(run_of(directory).journal))


def goes_on(directory: Path) -> bool:
    held = lease.read(run_of(directory).lease)
    return held is not None and held.is_alive


def assert_restored(terminal: Terminal) -> bytes:
    """Nothing of the UI is left on the terminal; returns what was written after it closed."""
    shown = terminal.bytes
    for on, off in ((b"\x1b[?1049h", b"\x1b[?1049l"), (b"\x1b[?25l", b"\x1b[?25h")):
        assert on in shown
        assert shown.rindex(off) > shown.rindex(on)
    for mode in (b"1000", b"1003", b"2004", b"1004"):
        if b"\x1b[?" + mode + b"h" in shown:
            end = shown.rindex(b"\x1b[?" + mode + b"l")
            assert end > shown.rindex(b"\x1b[?" + mode + b"h")
    assert b"Traceback" not in shown
    return shown[shown.rindex(b"\x1b[?1049l") :]


def test_a_terminated_ui_detaches_and_the_run_goes_on(directory: Path) -> None:
    with contextlib.closing(opened(directory, *TUNE)) as tty:
        tty.signal(signal.SIGTERM)
        assert tty.wait() == 143
        after = assert_restored(tty).decode()
    assert "The run goes on. Look again: autotune tui one" in after
    assert goes_on(directory)
    assert view_of(directory).ended is None


def test_a_ui_whose_terminal_hangs_up_detaches_and_the_run_goes_on(directory: Path) -> None:
    with contextlib.closing(opened(directory, *TUNE)) as tty:
        tty.hang_up()
        assert tty.wait() == 129
    assert goes_on(directory)
    assert view_of(directory).ended is None


def test_two_interrupts_from_outside_stop_the_run_now(directory: Path) -> None:
    with contextlib.closing(opened(directory, *TUNE)) as tty:
        tty.signal(signal.SIGINT)
        tty.read_until("What should become of it?")
        tty.signal(signal.SIGINT)
        assert tty.wait() == 130
        assert_restored(tty)
    view = view_of(directory)
    assert view.ended is not None
    assert view.ended.exit_code == 130
    assert view.trials[-1].state == "stopped"
    assert not goes_on(directory)


def test_control_c_twice_on_the_keyboard_stops_the_run_now(directory: Path) -> None:
    with contextlib.closing(opened(directory, *TUNE)) as tty:
        tty.type("\x03")
        tty.read_until("What should become of it?")
        tty.type("\x03")
        assert tty.wait() == 130
        after = assert_restored(tty).decode()
    assert "stopped" in after
    assert view_of(directory).trials[-1].state == "stopped"


def test_q_finishes_the_trial_where_that_is_chosen(directory: Path) -> None:
    with contextlib.closing(opened(directory, *TUNE)) as tty:
        tty.type("q")
        tty.read_until("What should become of it?")
        tty.type("f")
        assert tty.wait() == 130
        assert_restored(tty)
    view = view_of(directory)
    assert view.ended is not None
    assert {trial.state for trial in view.trials} == {"measured"}


def test_sizes_in_a_storm_then_detach(directory: Path) -> None:
    chance = random.Random(1)
    with contextlib.closing(opened(directory, *TUNE)) as tty:
        for _ in range(60):
            tty.resize((chance.randint(20, 200), chance.randint(5, 60)))
            tty.read_for(0.01)
        tty.resize((100, 30))
        start = len(tty.bytes)
        tty.type("q")
        tty.read_until("What should become of it?", after=start)
        tty.type("d")
        assert tty.wait() == 0
        assert_restored(tty)
    assert goes_on(directory)


def test_a_ui_that_is_killed_leaves_a_usable_terminal_and_the_run(directory: Path) -> None:
    with contextlib.closing(opened(directory, *TUNE)) as tty:
        (child,) = [
            int(name)
            for name in Path(f"/proc/{tty.process}/task/{tty.process}/children").read_text().split()
            if b"tui" in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        ]
        os.kill(child, signal.SIGKILL)
        assert tty.wait() == 137
        after = assert_restored(tty).decode()
    assert "autotune tui autotune-runs/one" in after
    assert goes_on(directory)


def test_looking_back_ends_well_and_leaves_a_last_frame(tmp_path: Path) -> None:
    runs = tmp_path / "autotune-runs"
    stories.make(runs, "finished")
    # The command as people call it: its UI loads while the words are read.
    tty = Terminal(tmp_path, "", "tui", stories.NAME, module="autotune")
    with contextlib.closing(tty):
        tty.read_until("finished")
        tty.type("y")
        command = f"autotune trial {stories.NAME} 2"
        tty.read_until(f"\x1b]52;c;{base64.b64encode(command.encode()).decode()}\x07")
        tty.type("q")
        assert tty.wait() == 0
        after = assert_restored(tty).decode()
    assert f"Run {stories.NAME}: ✓ finished" in after
    assert "best   #1  16×4  40.0 samples/s" in after


def test_no_color_sends_no_colour_whatever_is_shown(tmp_path: Path) -> None:
    stories.make(tmp_path / "autotune-runs", "finished")
    # Bold, dim, italic, underlined and reversed, and their ends.
    allowed = {"", "0", "1", "2", "3", "4", "7", "22", "23", "24", "27"}
    for variables, has_colour in (({"NO_COLOR": "1"}, False), ({}, True)):
        tty = Terminal(tmp_path, "", "tui", stories.NAME, module="autotune", variables=variables)
        with contextlib.closing(tty):
            tty.read_until("finished")
            for key, shown in (("5", "learning"), ("4", "what happened"), ("?", "Keys of")):
                start = len(tty.bytes)
                tty.type(key)
                tty.read_until(shown, after=start)
            tty.type("\x03")
            assert tty.wait() == 0
        codes = set(re.findall(rb"\x1b\[([\d;:]*)m", tty.bytes))
        sent = {part for code in codes for part in re.split("[;:]", code.decode())}
        assert (sent <= allowed) is not has_colour, sent - allowed
        assert "7" in sent or has_colour, "the row under the cursor"


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"CI": "1"}])
def test_a_terminal_that_cannot_repaint_gets_lines_and_the_code_of_the_run(
    directory: Path, variables: dict[str, str]
) -> None:
    with contextlib.closing(Terminal(directory, "unconfirmed", *TUNE, variables=variables)) as tty:
        assert tty.wait() == 5
    text = tty.bytes.decode().replace("\r\n", "\n")
    assert "00:00 run one started\n" in text
    assert "\x1b[?" not in text
    with contextlib.closing(Terminal(directory, "", "tui", "one", variables=variables)) as tty:
        assert tty.wait() == 5
    assert "\x1b" not in tty.bytes.decode()


def test_control_c_again_and_again_on_a_finished_run_leaves_as_once_does(tmp_path: Path) -> None:
    stories.make(tmp_path / "autotune-runs", "finished")
    tty = Terminal(tmp_path, "", "tui", stories.NAME, module="autotune")
    with contextlib.closing(tty):
        tty.read_until("finished")
        for _ in range(200):
            with contextlib.suppress(OSError):
                tty.type("\x03")
            tty.read_for(0.005)
            if b"autotune show" in tty.bytes:
                break
        assert tty.wait() == 0
        after = assert_restored(tty).decode()
    assert "^C" not in after
    assert f"Run {stories.NAME}: ✓ finished" in after
    assert f"  next   autotune show {stories.NAME}\r\n" in after


def test_interrupts_from_outside_cut_no_last_words_off(tmp_path: Path) -> None:
    """Where somebody starts the UI by itself, nobody else keeps the terminal from sending them."""
    stories.make(tmp_path / "autotune-runs", "finished")
    run = f"autotune-runs/{stories.NAME}"
    with contextlib.closing(Terminal(tmp_path, "", run, module="tui")) as tty:
        tty.read_until("finished")
        for _ in range(200):
            tty.signal(signal.SIGINT)
            tty.read_for(0.005)
            if b"autotune show" in tty.bytes:
                break
        assert tty.wait() == 0
        after = assert_restored(tty).decode()
    assert f"  next   autotune show {stories.NAME}\r\n" in after


def test_a_filled_form_that_is_left_stays_on_the_terminal_as_a_command(tmp_path: Path) -> None:
    with contextlib.closing(Terminal(tmp_path, "", "--ascii", module="tui")) as tty:
        tty.read_until("not named yet")
        tty.type("\r")
        tty.read_until("esc leaves the field")
        tty.type("~/mini lm")
        tty.read_until("lm'")
        tty.type("\x03")
        tty.read_until("again leaves at once")
        tty.type("\x03")
        assert tty.wait() == 130
        after = assert_restored(tty).decode()
    assert "Nothing was started. The form again:\r\n  autotune tui --model '~/mini lm'\r\n" in after
