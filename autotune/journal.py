"""The durable story of a run: append one line an event, follow it, survive a cut last line."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from autotune.errors import JournalError
from autotune.events import Event, Record, TrialFinished, TrialProgressed, record_adapter
from autotune.run_directory import RunDirectory, write_atomically

PROGRESS_INTERVAL_S = 0.2
"""Progress within one stage of a trial is written at most five times a second."""


class Journal:
    """The writer. One engine owns it at a time; methods may be called from any thread.

    Opening repairs a last line that a killed writer cut short: the whole lines are kept, the cut
    one is moved to `journal.cut` beside it.
    """

    def __init__(self, path: Path, progress_path: Path) -> None:
        self._progress_path = progress_path
        self._last_progress_s = 0.0
        self._last_stage: tuple[int, str] | None = None
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        records = repair(path)
        self._next_seq = records[-1].seq + 1 if records else 0
        self._t0_unix_s = time.time() - (records[-1].t_s if records else 0.0)
        for record in records[:1]:
            if record.event.kind == "run_started":
                self._t0_unix_s = record.event.created_unix_s
        self.records: list[Record] = records
        """What was in the journal when it was opened, and what was appended since."""
        self._file = path.open("ab")

    def append(self, event: Event) -> Record:
        """Writes an event to disk and returns it with its number. Progress is coalesced.

        Raises:
            OSError: The disk is full or gone.
        """
        with self._lock:
            t_s = max(0.0, time.time() - self._t0_unix_s)
            record = Record(seq=self._next_seq, t_s=round(t_s, 3), event=event)
            line = record_adapter().dump_json(record)
            if isinstance(event, TrialProgressed):
                now = time.monotonic()
                stage = (event.number, event.stage)
                # Whoever draws must learn of a stage in which nothing may be drawn.
                is_due = now - self._last_progress_s >= PROGRESS_INTERVAL_S
                if is_due or stage != self._last_stage:
                    self._last_progress_s = now
                    self._last_stage = stage
                    # Where the run's directory is gone, it is not made anew for this.
                    with contextlib.suppress(FileNotFoundError):
                        write_atomically(self._progress_path, line.decode(), make_directory=False)
                return record
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._next_seq += 1
            self.records.append(record)
            if isinstance(event, TrialFinished):
                # Its last progress would look like news to whoever reads it after this.
                self._progress_path.unlink(missing_ok=True)
            return record

    def close(self) -> None:
        """Closes the file; everything appended is on disk already."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read(path: Path) -> list[Record]:
    """All whole records of a journal; a cut last line is left out, an unknown event kept out.

    Raises:
        JournalError: A line that is not the last one cannot be read.
    """
    if not path.exists():
        return []
    records, _ = _parse(path, path.read_bytes())
    return records


def read_run(run: RunDirectory) -> list[Record]:
    """All whole records of a run.

    Raises:
        JournalError: A line that is not the last one cannot be read, or there is nothing to read
            though trials have run.
    """
    records = read(run.journal)
    lost = None if records else missing(run)
    if lost is not None:
        raise lost
    return records


def repair(path: Path) -> list[Record]:
    """Reads a journal and moves a cut last line out of the writer's way.

    Raises:
        JournalError: A line that is not the last one cannot be read.
    """
    if not path.exists():
        return []
    data = path.read_bytes()
    records, num_good_bytes = _parse(path, data)
    if num_good_bytes < len(data):
        path.with_suffix(".cut").write_bytes(data[num_good_bytes:])
        with path.open("r+b") as file:
            file.truncate(num_good_bytes)
            os.fsync(file.fileno())
    return records


def _parse(path: Path, data: bytes) -> tuple[list[Record], int]:
    records: list[Record] = []
    num_good_bytes = 0
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        is_last = number == len(lines)
        if not line.strip():
            num_good_bytes += len(line) + (not is_last)
            continue
        record = _record(line)
        if record is None and not is_last and not _is_json(line):
            rest = b"".join(lines[number:]).strip()
            if not rest:
                break
            raise damaged(path, number)
        if is_last:
            # Every whole line ends in a newline, so this one was cut.
            break
        if record is not None:
            records.append(record)
        num_good_bytes += len(line) + 1
    return records, num_good_bytes


def damaged(path: Path, number: int) -> JournalError:
    """The error of a journal with a line that cannot be read, counted from 1."""
    return JournalError(
        f"Line {number} of {path} is damaged.",
        "Delete that line to go on with the trials around it, or use --fresh.",
    )


def missing(run: RunDirectory) -> JournalError | None:
    """The error of a run whose trials have left something, though no journal tells of them.

    Returns:
        None where there is a journal that tells anything, or where no trial has run yet.
    """
    try:
        size_bytes = run.journal.stat().st_size
    except FileNotFoundError:
        size_bytes = None
    except OSError:
        # Whoever reads it has more to say.
        return None
    if size_bytes or not run.has_trials:
        return None
    what = "missing" if size_bytes is None else "empty"
    return JournalError(
        f"The journal {run.journal} is {what}, though trials have run: the directory is damaged.",
        f"What the trials printed is in {run.trials}; --fresh starts over under the same name.",
    )


def _record(line: bytes) -> Record | None:
    try:
        return record_adapter().validate_json(line)
    except (ValidationError, ValueError):
        return None


def _is_damaged(line: bytes) -> bool:
    """Whether a line holds something that nobody wrote."""
    return bool(line.strip()) and not _is_json(line)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


class Tail:
    """Reads what a journal gained since the last look; any number of readers may do so at a time.

    Lines that a newer version wrote, and that this one does not know, are passed over; so are
    damaged ones, but those are told. A journal that was put in the place of another one is read
    from its start.
    """

    def __init__(
        self, path: Path, progress_path: Path | None = None, *, start_seq: int = 0
    ) -> None:
        self._path = path
        self._progress_path = progress_path
        self._start_seq = start_seq
        self._offset = 0
        self._file_id: int | None = None
        self._last_progress = b""
        self._num_lines = 0
        self.damaged_line: int | None = None
        """Number of the first line that cannot be read and that others stand behind."""
        self.is_at_end = False
        """Whether the last look reached the end of what was written."""
        self.num_restarts = 0
        """How often another journal was found in the place of the one that was read."""

    def read(self, most_bytes: int | None = None) -> list[Record]:
        """New records, oldest first; progress comes last, once everything before it was read.

        Args:
            most_bytes: About how much of the journal to read in one go; None is all of it.

        Raises:
            OSError: The journal is there and cannot be read.
        """
        data, self.is_at_end = self._new_data(most_bytes)
        *lines, rest = data.split(b"\n")
        found = [_record(line) if line.strip() else None for line in lines]
        if self.is_at_end and not rest and lines and found[-1] is None and _is_damaged(lines[-1]):
            # As good as one that is not whole.
            lines.pop()
        # A line that is not whole yet is read again: a new writer cuts it off.
        self._offset += sum(len(line) + 1 for line in lines)
        records = []
        for line, record in zip(lines, found, strict=False):
            self._num_lines += 1
            if record is not None and record.seq >= self._start_seq:
                records.append(record)
            elif record is None and self.damaged_line is None and _is_damaged(line):
                self.damaged_line = self._num_lines
        if self.is_at_end and (progress := self._new_progress()) is not None:
            records.append(progress)
        return records

    def _new_data(self, most_bytes: int | None) -> tuple[bytes, bool]:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return b"", True
        with file:
            status = os.fstat(file.fileno())
            is_other = self._file_id not in (None, status.st_ino)
            if is_other or status.st_size < self._offset:
                self._offset = self._start_seq = self._num_lines = 0
                self.damaged_line = None
                self.num_restarts += 1
            self._file_id = status.st_ino
            file.seek(self._offset)
            data = file.read(-1 if most_bytes is None else most_bytes)
            while most_bytes is not None and data and b"\n" not in data:
                more = file.read(most_bytes)
                if not more:
                    break
                data += more
        return data, most_bytes is None or len(data) < most_bytes

    def _new_progress(self) -> Record | None:
        if self._progress_path is None:
            return None
        try:
            progress = self._progress_path.read_bytes()
        except OSError:
            # It may be missed; what was read of the journal may not.
            return None
        if progress == self._last_progress:
            return None
        self._last_progress = progress
        return _record(progress) if progress else None


def follow(
    path: Path,
    progress_path: Path | None = None,
    *,
    poll_s: float = 0.1,
    should_stop: Callable[[], bool] = lambda: False,
    start_seq: int = 0,
) -> Iterator[Record | None]:
    """Yields records as they are written, progress included, from `start_seq` on.

    Yields None at every poll that found nothing, so that a caller can look around; ends after
    `should_stop()` is true and what was written before has been read.
    """
    tail = Tail(path, progress_path, start_seq=start_seq)
    while True:
        stopping = should_stop()
        records = tail.read()
        yield from records
        if stopping:
            return
        if not records:
            yield None
        time.sleep(poll_s)
