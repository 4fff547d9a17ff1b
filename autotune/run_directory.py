"""The one directory that tells the whole story of a run, and where everything stands in it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import UsageError

if TYPE_CHECKING:
    from pydantic import JsonValue

DEFAULT_ROOT = "autotune-runs"
"""Where runs are kept if nobody says otherwise."""
_ROOT_VARIABLE = "AUTOTUNE_RUN_DIR"


def place(text: str) -> Path:
    """A path as somebody wrote it, with `~` for a home.

    Raises:
        UsageError: It is empty, no UTF-8, or there is no such home.
    """
    if not text:
        raise UsageError("That is an empty path.", "Name a place; '.' is the present one.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"The path {text!r} is no UTF-8, in which files tell of it.",
            "Rename it, or link to it.",
        ) from error
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"The path {text} begins with a home that is not known.", "Write it without ~."
        ) from error


def write_atomically(
    path: Path, text: str, *, mode: int = 0o644, make_directory: bool = True
) -> None:
    """Writes a whole file or nothing: readers see the old text or the new one.

    Args:
        path: The file.
        text: What it will hold.
        mode: Its rights.
        make_directory: Whether to make the directory that it stands in, where that is missing.

    Raises:
        OSError: The directory cannot be written, or is missing and not to be made.
    """
    if make_directory:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, document: JsonValue, *, mode: int = 0o644) -> None:
    """Writes a JSON document atomically, indented for human readers."""
    write_atomically(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n", mode=mode)


def is_want_of_room(error: OSError) -> bool:
    """Whether something could not be written because the disk, or a share of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_full(directory: Path) -> bool:
    """Whether the disk that holds a directory has no room for what an engine writes."""
    try:
        return shutil.disk_usage(directory).free < _LEAST_FREE_BYTES
    except OSError:
        return False


_LEAST_FREE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of one run. Creating the object touches nothing on disk."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name: the last part of its path."""
        return self.path.name

    @property
    def request(self) -> Path:
        """What was asked for."""
        return self.path / "request.json"

    @property
    def journal(self) -> Path:
        """Every event, one JSON line each."""
        return self.path / "journal.jsonl"

    @property
    def progress(self) -> Path:
        """The latest progress of the running trial, replaced in place."""
        return self.path / "progress.json"

    @property
    def lease(self) -> Path:
        """Who runs the engine: host, process, start time."""
        return self.path / "engine.json"

    @property
    def engine_log(self) -> Path:
        """What the engine and the libraries under it print."""
        return self.path / "engine.log"

    @property
    def control(self) -> Path:
        """Requests to the engine, one small file each."""
        return self.path / "control"

    @property
    def study(self) -> Path:
        """Optuna's database, where no other storage was given."""
        return self.path / "study.db"

    @property
    def workload(self) -> Path:
        """Scratch space of the workload: prepared data, the demo's tokenizer."""
        return self.path / "workload"

    @property
    def out(self) -> Path:
        """Where files are exported to by default."""
        return self.path / "out"

    def trial(self, number: int) -> Path:
        """Logs and readings of one trial."""
        return self.trials / f"{number:03d}"

    @property
    def trials(self) -> Path:
        """What the trials leave, a directory each."""
        return self.path / "trials"

    @property
    def has_trials(self) -> bool:
        """Whether trials have left anything."""
        try:
            return any(self.trials.iterdir())
        except OSError:
            return False

    @property
    def _is_in_usual_place(self) -> bool:
        return _is_usual(self.path.parent)

    @property
    def called(self) -> str:
        """What to write for RUN in a command: its name where that is enough, else its path."""
        return self.name if self._is_in_usual_place else str(self.path)

    @property
    def root_options(self) -> tuple[str, ...]:
        """Options that say where runs are kept, for a command that names this one."""
        return () if self._is_in_usual_place else ("--run-dir", str(self.path.parent))

    @property
    def resume_command(self) -> str:
        """The command that goes on with the run, to be pasted into a shell of this directory."""
        words = ["autotune", "tune", "--resume", "--name", self.name, *self.root_options]
        return shlex.join(words)

    def create(self) -> None:
        """Makes the directory, readable by its owner only.

        Raises:
            UsageError: The place cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
            self.control.mkdir(exist_ok=True)
            self.trials.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def discard_unbegun(self) -> None:
        """Removes the directory, unless an engine has ever worked on the run."""
        if self.path.is_dir() and not any(self.path.glob(f"{self.journal.name}*")):
            shutil.rmtree(self.path, ignore_errors=True)


def unwritable(path: Path, error: OSError) -> UsageError:
    """The error that tells of a run directory in which nothing can be written."""
    room = "Make room there, or choose" if is_want_of_room(error) else "Choose"
    return UsageError(
        f"The run directory {path} cannot be written: {error.strerror}.",
        f"{room} another place with --run-dir.",
    )


LONGEST_NAME = 200
"""Bytes of a run's name; file systems take 255, with which files are written beside it."""


def checked_name(name: str) -> str:
    """A name that a run may have: one plain part of a path.

    Raises:
        UsageError: It would lead somewhere else, be hidden, or fit no file system or no line.
    """
    is_plain = name.isprintable() and Path(name).name == name and "\\" not in name
    is_short = len(name.encode(errors="replace")) <= LONGEST_NAME
    if not (is_plain and is_short) or not name.strip() or name.startswith("."):
        raise UsageError(
            f"A run cannot be called {name!r}.",
            "Give a plain name such as minilm-1; --run-dir says where runs are kept.",
        )
    return name


def new_name(root: Path, stem: str) -> str:
    """A free name model-date-counter below `root`."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem)[: LONGEST_NAME // 2].strip("-.") or "run"
    date = time.strftime("%Y%m%d")
    counter = 1
    while os.path.exists(root / f"{stem}-{date}-{counter}"):
        counter += 1
    return f"{stem}-{date}-{counter}"


def find(root: Path, run: str) -> RunDirectory:
    """The run called `run`: a path, a name below `root`, or "last" for the newest.

    Raises:
        UsageError: There is no such run; the message names the near ones.
    """
    for path in (Path(run), root / run):
        if os.path.isfile(path / "request.json"):
            # A run goes by the last part of its path, which `.` and `..` hide.
            return RunDirectory(path if path.name not in ("", "..") else path.resolve())
    runs = list_runs(root)
    if run == "last" and runs:
        return runs[-1]
    known = ", ".join(r.name for r in runs[-3:]) or "none yet"
    raise UsageError(
        f"There is no run {run!r} in {root}.",
        f"Runs there: {known}. `{listing_command(root)}` lists them all.",
    )


def listing_command(root: Path) -> str:
    """The command that lists the runs below `root`."""
    options = () if _is_usual(root) else ("--run-dir", str(root))
    return shlex.join(["autotune", "runs", *options])


def _is_usual(root: Path) -> bool:
    usual = os.environ.get(_ROOT_VARIABLE) or DEFAULT_ROOT
    return root == Path(DEFAULT_ROOT) and usual == DEFAULT_ROOT


def list_runs(root: Path) -> list[RunDirectory]:
    """All runs below `root` that may be read, oldest first.

    Raises:
        UsageError: The place itself cannot be read.
    """
    if not os.path.isdir(root):
        return []
    try:
        paths = list(root.iterdir())
    except OSError as error:
        raise UsageError(
            f"The directory {root} cannot be read: {error.strerror}.",
            "Name another one with --run-dir.",
        ) from error
    found = []
    for path in paths:
        # A run is its owner's alone, and one may be removed meanwhile.
        with contextlib.suppress(OSError):
            asked = (path / "request.json").stat()
            if stat.S_ISREG(asked.st_mode):
                found.append((asked.st_mtime, path.name, path))
    return [RunDirectory(path) for _, _, path in sorted(found)]
