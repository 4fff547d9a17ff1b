"""The command ends in order also where it has hardly begun."""

from __future__ import annotations

import subprocess
import sys

INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *rest):
        if name == "autotune.cli.app":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["autotune", "runs"]
from autotune.__main__ import main
main()
"""


def test_an_interrupt_while_the_command_line_loads_is_no_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "Interrupted.\n")
