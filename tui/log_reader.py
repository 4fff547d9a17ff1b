"""The end of a log that may hold anything: carriage returns, control codes, bytes that are no text.

Whatever it holds, text comes out: no code reaches the terminal, and memory stays bounded.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from autotune.display.output import plain_text

MAX_LINES = 5000
MAX_LINE_CHARACTERS = 2000
FIRST_BYTES = 1024 * 1024
"""How much of a long log is read at first, from its end."""
_SLICE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNow:
    """A log at one moment."""

    lines: tuple[str, ...] = ()
    num_dropped: int = 0
    """Lines that came before those kept, as far as they were read."""
    is_there: bool = False
    starts_late: bool = False
    """The beginning of the file was never read."""


class LogReader:
    """Reads a log again and again, each time what is new.

    Args:
        path: The file; it may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self._num_seen = 0
        self._starts_late = False
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self.has_more = False
        """Whether the last look left something to read."""
        self.now = LogNow()

    def look(self) -> LogNow | None:
        """Reads on; None where nothing is new."""
        data = self._new_bytes()
        if data is None:
            return None
        *whole, self._rest = (self._rest + data).split(b"\n")
        # A line without an end must not grow without one either. Of a progress bar, which starts
        # itself over and over, the end is what would be on a terminal.
        self._rest = self._rest[-8 * MAX_LINE_CHARACTERS :]
        for line in whole:
            self._lines.append(text_of(line))
        self._num_seen += len(whole)
        lines = tuple(self._lines)
        if self._rest:
            lines = (*lines, text_of(self._rest))[-MAX_LINES:]
        self.now = LogNow(
            lines=lines,
            num_dropped=max(0, self._num_seen - MAX_LINES),
            is_there=True,
            starts_late=self._starts_late,
        )
        return self.now

    def _new_bytes(self) -> bytes | None:
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._offset:
                    self._offset, self._rest = 0, b""
                    self._lines.clear()
                if self._offset == 0 and size > FIRST_BYTES:
                    self._offset = size - FIRST_BYTES
                    self._starts_late = True
                file.seek(self._offset)
                data = file.read(_SLICE_BYTES)
        except OSError:
            self.has_more = False
            return None
        self.has_more = len(data) == _SLICE_BYTES
        if not data and self.now.is_there:
            return None
        self._offset += len(data)
        return data


def text_of(line: bytes) -> str:
    """One line of a log as text that can be shown, cut where it is too long."""
    text = plain_text(line.decode("utf-8", errors="replace")).expandtabs(8)
    return text if len(text) <= MAX_LINE_CHARACTERS else f"{text[:MAX_LINE_CHARACTERS]} … cut"
