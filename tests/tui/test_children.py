"""Commands as children: their answer, their end, and what is left behind."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import psutil
import pytest

from tui import children
from tui.children import Children, Reply

PATIENCE_S = 20.0


def _children() -> Children:
    """Children that run a program given as text in the place of a module."""
    return Children(command=(sys.executable, "-I", "-S", "-c"))


def _ask(program: str, *words: str, time_limit_s: float = 30.0) -> Reply:
    return asyncio.run(_children().ask(words, module=program, time_limit_s=time_limit_s))


def test_an_answer_is_a_document_and_the_talk_beside_it() -> None:
    program = (
        "import sys, json; print('Probing \\x1b[1mmemory', file=sys.stderr, flush=True);"
        "print('x' * 200_000, file=sys.stderr); print(json.dumps({'schema': sys.argv[1]}))"
    )
    heard: list[str] = []
    answer = asyncio.run(
        _children().ask(["7"], module=program, time_limit_s=30.0, on_line=heard.append)
    )
    assert (answer.code, answer.document, answer.error) == (0, {"schema": "7"}, None)
    assert heard[0] == "Probing memory"
    assert answer.said == tuple(heard)


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (
            'import sys; print(\'{"error": {"cause": "No.", "remedy": "Do."}}\'); sys.exit(2)',
            ("No.", "Do."),
        ),
        ("import sys; sys.exit('bad luck')", ("The command ended with code 1: bad luck.", None)),
        ("print('[1]')", ("The command ended with code 0.", None)),
        ("import os; os.kill(os.getpid(), 9)", ("The command ended with signal 9.", None)),
    ],
)
def test_whatever_goes_wrong_is_told_as_cause_and_remedy(
    program: str, error: tuple[str, str | None]
) -> None:
    assert _ask(program).error == error


TIDY = """
import pathlib, sys, time
place = pathlib.Path(sys.argv[1])
(place / "started").touch()
try:
    time.sleep(60)
except KeyboardInterrupt:
    (place / "tidied").touch()
"""
STUBBORN = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
own = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
place = pathlib.Path(sys.argv[1])
(place / "pids.part").write_text(f"{os.getpid()} {own.pid}")
(place / "pids.part").rename(place / "started")
time.sleep(60)
"""


async def _cancelled(program: str, place: Path) -> None:
    asked = asyncio.create_task(_children().ask([str(place)], module=program, time_limit_s=60.0))
    deadline_s = time.monotonic() + PATIENCE_S
    while not (place / "started").exists():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


def test_nobody_waits_any_more_and_the_child_tidies_up(tmp_path: Path) -> None:
    asyncio.run(_cancelled(TIDY, tmp_path))
    assert (tmp_path / "tidied").exists()


def test_a_child_that_does_not_end_is_ended_with_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "GRACE_S", 0.3)
    asyncio.run(_cancelled(STUBBORN, tmp_path))
    for pid in map(int, (tmp_path / "started").read_text().split()):
        deadline_s = time.monotonic() + PATIENCE_S
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline_s, pid
            time.sleep(0.05)


def test_a_child_has_limited_time(tmp_path: Path) -> None:
    answer = _ask(TIDY, str(tmp_path), time_limit_s=0.5)
    assert answer.error is not None
    assert answer.error[0].endswith("took longer than 0 s.")


TIDY_FOR_LONG = """
import pathlib, sys, time
place = pathlib.Path(sys.argv[1])
try:
    (place / "started").touch()
    time.sleep(60)
finally:
    time.sleep(0.5)
    (place / "tidied").touch()
"""


def test_a_child_that_several_wait_for_is_asked_to_end_once(tmp_path: Path) -> None:
    async def close() -> None:
        own = _children()
        asked = asyncio.create_task(
            own.ask([str(tmp_path)], module=TIDY_FOR_LONG, time_limit_s=60.0)
        )
        while not (tmp_path / "started").exists():
            await asyncio.sleep(0.02)
        asked.cancel()
        await asyncio.sleep(0.2)
        await own.close()

    asyncio.run(close())
    assert (tmp_path / "tidied").exists()


def test_closing_ends_what_is_left(tmp_path: Path) -> None:
    async def close() -> Reply:
        own = _children()
        asked = asyncio.create_task(own.ask([str(tmp_path)], module=TIDY, time_limit_s=60.0))
        while not (tmp_path / "started").exists():
            await asyncio.sleep(0.02)
        await own.close()
        return await asked

    answer = asyncio.run(close())
    assert (tmp_path / "tidied").exists()
    assert answer.code == 0


def test_a_child_that_cannot_be_started_is_told_as_well() -> None:
    answer = asyncio.run(_children().ask(["x\0y"], module="pass", time_limit_s=30.0))
    assert answer.error is not None
    assert answer.error[0].startswith("What looks at the files could not be started: ")
    too_long = asyncio.run(_children().ask(["x" * 10_000_000], module="pass", time_limit_s=30.0))
    assert too_long.error is not None
    assert "Argument list too long" in too_long.error[0]
