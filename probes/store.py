"""Surveys kept between runs, one file for each state of hardware, driver and libraries.

Only what lasts is taken from a kept survey: its speeds and the findings about them. Memory, other
processes and limits are of the moment, and are read anew by whoever loads one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from probes.machine import Finding, Machine, machine_adapter

_NUM_KEPT = 16


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where surveys are kept: `AUTOTUNE_CACHE_DIR`, or `autotune` in the user's cache.

    Returns:
        The directory, which need not exist; None where the user has no home.
    """
    own = environment.get("AUTOTUNE_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "win32":
        local = environment.get("LOCALAPPDATA")
        return (Path(local) if local else home / "AppData/Local") / "autotune/Cache"
    if sys.platform == "darwin":
        return home / "Library/Caches/autotune"
    # The convention says that a relative path is no answer.
    shared = Path(environment.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else home / ".cache") / "autotune"


def load(digest: str, directory: Path | None) -> Machine | None:
    """The kept survey of a machine with this digest; None if there is none that can be read.

    Args:
        digest: The machine's.
        directory: The cache; None keeps nothing.
    """
    if directory is None:
        return None
    try:
        machine = machine_adapter().validate_json(_file(directory, digest).read_bytes())
    except (OSError, ValidationError):
        return None
    return machine if machine.digest == digest and machine.devices else None


def save(machine: Machine, directory: Path | None) -> Finding | None:
    """Keeps a survey, atomically, in the place of an older one.

    Args:
        machine: What the survey found.
        directory: The cache; None keeps nothing.

    Returns:
        Why it could not be kept, where it could not.
    """
    if directory is None:
        return None
    target = _file(directory, machine.digest)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(machine_adapter().dump_json(machine, indent=1))
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        return Finding(
            cause=f"The readings could not be kept in {target.parent}: {error.strerror}.",
            remedy="Name another place in AUTOTUNE_CACHE_DIR, or they are taken again each time.",
            is_problem=False,
        )
    _forget_oldest(target.parent)
    return None


def _file(directory: Path, digest: str) -> Path:
    return directory / "machines" / f"{digest}.json"


def _forget_oldest(directory: Path) -> None:
    with contextlib.suppress(OSError):
        files = sorted(directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[:-_NUM_KEPT]:
            path.unlink(missing_ok=True)
