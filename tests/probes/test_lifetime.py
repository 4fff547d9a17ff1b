"""How a process ends at once: exit handlers ran, what it printed is out, threads do not matter."""

from __future__ import annotations

import os
import subprocess
import sys

ENDS = """
import atexit, sys, threading, time
from probes.lifetime import end_at_once

threading.Thread(target=time.sleep, args=(600,)).start()
atexit.register(print, "handled")
sys.stdout.write("said, ")
end_at_once(3)
"""


def test_a_process_ends_at_once_and_leaves_nothing_unsaid() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "said, handled\n", "")


def test_a_reader_that_is_gone_is_no_hindrance() -> None:
    ended = subprocess.run(
        f"{sys.executable} -c 'from probes.lifetime import end_at_once\n"
        'print("x" * 100)\nend_at_once(4)\' | true; exit "${PIPESTATUS[0]}"',
        shell=True,
        executable="/bin/bash",
        # What is printed waits for the end.
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (4, "")
