"""Writes the files of a finished run: into a hidden directory first, into place once verified."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from autotune.errors import ExportError, UsageError
from autotune.export import document
from autotune.export.bundle import Bundle, bundle_adapter
from autotune.export.child import ask, log_at

TIME_LIMIT_S = 900.0
"""For one cold start, two single optimizer steps and the tokenising of the data before them."""

_CHILD = "autotune.export.verify"
FILE_NAMES = (
    "recommendation.json",
    "training_arguments.json",
    "training_arguments.yaml",
    "train.args",
    "accelerate.yaml",
    "report.svg",
    "report.md",
    "trainer.py",
    "accelerator.py",
)
"""Every file that may be written."""
_LAST = FILE_NAMES[0]
"""Moved into place after all others: where it is, the set is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """A file that has been through its consumer."""

    name: str
    """Relative to the directory of the export."""
    consumer: str
    """Who reads it."""
    verified_with: str
    """How it was read back."""
    sha256: str


def write(
    bundle: Bundle,
    directory: Path,
    *,
    force: bool = False,
    log: Path | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    should_stop: Callable[[], str | None] = lambda: None,
) -> tuple[ExportedFile, ...]:
    """Writes every file of a run, or none.

    The files appear in `directory` one by one, each whole, after all of them were read back
    through their consumers in a child process. Other files there are left alone.

    Args:
        bundle: What the files tell.
        directory: Where they go; made if it is not there.
        force: Replace files of the same names that hold something else.
        log: Keeps what the consumers print; None keeps it only where something fails.
        time_limit_s: For rendering and verification together.
        should_stop: Asked in between; a reason ends it, and nothing is written.

    Raises:
        UsageError: The directory holds files of another content.
        ExportError: It cannot be written, or a consumer does not accept its file.
    """
    directory = directory.absolute()
    if not force:
        _refuse_another_run(bundle, directory)
    with _staging(directory) as staging:
        files = _ask(
            bundle, staging, write=True, log=log, time_limit_s=time_limit_s, should_stop=should_stop
        )
        if not force:
            names = [f.name for f in files if _differs(staging / f.name, directory / f.name)]
            _refuse(directory, names)
        occupied = [file.name for file in files if os.path.isdir(directory / file.name)]
        if occupied:
            raise ExportError(
                f"{directory / occupied[0]} is a directory, where a file has to go.",
                "Choose another place with --out, or move that directory away.",
            )
        try:
            for file in sorted(files, key=lambda file: file.name == _LAST):
                os.replace(staging / file.name, directory / file.name)
        except OSError as error:
            raise _unwritable(directory, error) from error
    return files


def verify(
    bundle: Bundle,
    directory: Path,
    *,
    log: Path | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> tuple[ExportedFile, ...]:
    """Reads the files of an earlier export back through their consumers.

    Raises:
        ExportError: A file is missing, was changed, or is not accepted.
    """
    if not os.path.isdir(directory):
        raise ExportError(
            f"There is no directory {directory} with files of run {bundle.run!r}.",
            "Export the run again: autotune export RUN.",
        )
    return _ask(bundle, directory.absolute(), write=False, log=log, time_limit_s=time_limit_s)


def _ask(
    bundle: Bundle,
    directory: Path,
    *,
    write: bool,
    log: Path | None,
    time_limit_s: float,
    should_stop: Callable[[], str | None] = lambda: None,
) -> tuple[ExportedFile, ...]:
    # Beside the files there is room for a model; a directory that is only read may be read-only.
    with (
        log_at(log, "export.log") as kept,
        # What the child started may still be writing when it is ended.
        tempfile.TemporaryDirectory(
            dir=directory if write else None, prefix=".autotune-", ignore_cleanup_errors=True
        ) as scratch,
    ):
        request: JsonValue = {
            "bundle": json.loads(bundle_adapter().dump_json(bundle)),
            "directory": str(directory),
            "scratch": scratch,
            "write": write,
        }
        answer = ask(
            _CHILD,
            request,
            environment={**bundle.environment, **_QUIET},
            log=kept,
            time_limit_s=time_limit_s,
            should_stop=should_stop,
        )
        assert isinstance(answer, dict)
        if "failure" in answer:
            raise ExportError(_sentence(answer["failure"]), f"The log of the check is {kept}.")
    files = answer["files"]
    assert isinstance(files, list)
    return tuple(ExportedFile(**file) for file in files)  # type: ignore[arg-type]


def _sentence(value: JsonValue) -> str:
    text = str(value)
    return text if text.endswith((".", "!", "?")) else f"{text}."


_QUIET = {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "MPLBACKEND": "Agg",
}
"""Variables of the child that change nothing of what is checked."""


@contextlib.contextmanager
def _staging(directory: Path) -> Iterator[Path]:
    """A hidden directory inside `directory`, gone afterwards with all that was made for it."""
    new = [path for path in (directory, *directory.parents) if not os.path.exists(path)]
    staging: Path | None = None
    try:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            staging = Path(tempfile.mkdtemp(dir=directory, prefix=".autotune-"))
        except OSError as error:
            raise _unwritable(directory, error) from error
        yield staging
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        for path in new:
            # Only where nothing was written: a directory with files in it stays.
            with contextlib.suppress(OSError):
                path.rmdir()


def _unwritable(directory: Path, error: OSError) -> ExportError:
    return ExportError(
        f"The directory {directory} cannot be written: {error.strerror or error}.",
        "Choose another place with --out.",
    )


def _refuse_another_run(bundle: Bundle, directory: Path) -> None:
    """Says so at once where the directory holds the answer of another run."""
    path = directory / _LAST
    with contextlib.suppress(OSError):
        if path.read_bytes() != document.as_json(bundle.document).encode():
            _refuse(directory, [_LAST])


def _refuse(directory: Path, names: list[str]) -> None:
    if names:
        raise UsageError(
            f"{directory} already holds {', '.join(names)} with another content.",
            "Choose another place with --out, or replace them with --force.",
        )


def _differs(new: Path, old: Path) -> bool:
    """Whether something else than the new content stands in the place of a file."""
    try:
        return old.read_bytes() != new.read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        return True
