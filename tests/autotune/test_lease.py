from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from autotune import lease
from autotune.errors import UsageError
from autotune.run_directory import write_json


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.json"


def test_a_lease_is_taken_and_released(path: Path) -> None:
    taken = lease.take(path)
    assert taken == lease.mine()
    assert taken.process == os.getpid()
    assert taken.is_alive
    assert lease.read(path) == taken
    assert lease.take(path) == taken, "one's own lease is no obstacle"
    lease.release(path)
    assert lease.read(path) is None


def test_a_living_engine_keeps_others_out(path: Path) -> None:
    code = (
        "import sys; from autotune import lease; from pathlib import Path; "
        "lease.take(Path(sys.argv[1])); print('taken', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        with pytest.raises(UsageError, match=f"worked on by process {other.pid}"):
            lease.take(path)
        lease.release(path)
        assert lease.read(path) is not None, "nobody releases the lease of another"
    finally:
        other.communicate("", timeout=30)
    assert lease.take(path) == lease.mine(), "a dead engine holds nothing"


def test_two_that_come_at_once_look_one_after_the_other(path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    taken = threading.Event()

    def take() -> None:
        with suppress(UsageError):
            lease.take(path)
        taken.set()

    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        # Somebody is just about to take it, and has not written yet.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        thread = threading.Thread(target=take)
        thread.start()
        assert not taken.wait(0.3)
        held = lease.Lease(
            host=lease.mine().host,
            process=other.pid,
            started_unix_s=psutil.Process(other.pid).create_time(),
        )
        write_json(path, asdict(held))
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        thread.join(30)
        assert taken.is_set()
        assert lease.read(path) == held, "the lease of a living engine stays"
    finally:
        os.close(descriptor)
        other.communicate(b"\n", timeout=30)


def test_a_process_number_that_was_used_again_is_another_process(path: Path) -> None:
    reused = replace(lease.mine(), started_unix_s=lease.mine().started_unix_s - 100)
    assert not reused.is_alive
    write_json(path, asdict(reused))
    assert lease.take(path) == lease.mine()


def test_an_engine_on_another_host_is_assumed_to_live(path: Path) -> None:
    assert replace(lease.mine(), host="elsewhere", process=1).is_alive


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": "h"}', '{"other": 1}'])
def test_what_is_no_lease_holds_nothing(path: Path, text: str) -> None:
    path.write_text(text)
    assert lease.read(path) is None
    assert lease.take(path) == lease.mine()
