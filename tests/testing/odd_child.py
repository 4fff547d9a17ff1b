"""A child that behaves as it is told: the first argument names how."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TextIO


def main(arguments: list[str], out: TextIO) -> int:
    """Says a line, then behaves."""
    out.write(f"{' '.join(arguments)}\n")
    out.flush()
    match arguments[0]:
        case "noise":
            print("a library greets you")
            os.write(1, b"and so does its C code\n")
        case "code":
            return 7
        case "crash":
            raise ValueError("the child broke")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(600)
        case "pid":
            out.write(f"{os.getpid()}\n")
            out.flush()
            time.sleep(600)
        case "where":
            out.write(f"{os.getcwd() in sys.path or '' in sys.path}\n")
    return 0
