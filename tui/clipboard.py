"""Copying that works over SSH: the terminal is asked by OSC 52, and a file holds it in any case."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.run_directory import RunDirectory, write_atomically

MAX_TERMINAL_BYTES = 74_994
"""What terminals take in one request; longer texts are in the file alone."""


def last_copy(run: RunDirectory) -> Path:
    """The file that holds what was copied last."""
    return run.path / "last-copy.txt"


def keep(run: RunDirectory, text: str) -> Path:
    """Writes the text into the file, readable by its owner only.

    Raises:
        OSError: The run directory cannot be written, or is gone: it is never made anew.
    """
    path = last_copy(run)
    whole = text if text.endswith("\n") else text + "\n"
    write_atomically(path, whole, mode=0o600, make_directory=False)
    return path


def fits_terminal(text: str) -> bool:
    """Whether a terminal is likely to take the text."""
    return len(text.encode()) <= MAX_TERMINAL_BYTES


def hint() -> str:
    """What a user of tmux has to know; empty elsewhere."""
    return " In tmux this needs `set -g set-clipboard on`." if os.environ.get("TMUX") else ""
