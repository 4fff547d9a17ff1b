"""Files and directories that a field may name: what there is, and what completes a beginning."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from autotune.errors import UsageError
from autotune.run_directory import RunDirectory, list_runs
from autotune.workload.source import BUILDERS, file_kind

Wanted: TypeAlias = Literal["model", "dataset", "directory"]
"""What a field takes: a directory of a model, data in a file or a directory, any directory."""
MAX_ENTRIES = 2000
"""Entries of a directory that are looked at."""
_DATA_MARKERS = ("dataset_dict.json", "dataset_info.json", "state.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One entry of a directory."""

    name: str
    is_directory: bool
    note: str = ""
    """What it is, where that can be told at once."""
    is_whole: bool = False
    """Whether it is what is looked for, so that it is taken instead of entered."""


def listed(directory: Path, wanted: Wanted) -> list[Place]:
    """The entries of a directory that are of use, directories first; hidden ones are left out.

    Raises:
        OSError: It cannot be read.
    """
    found = []
    with os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number >= MAX_ENTRIES:
                break
            place = None if entry.name.startswith(".") else _place(entry, wanted)
            if place is not None:
                found.append(place)
    return sorted(found, key=lambda place: (not place.is_directory, place.name.casefold()))


def _place(entry: os.DirEntry[str], wanted: Wanted) -> Place | None:
    if _is_directory(entry):
        note = _directory_note(Path(entry.path), wanted)
        return Place(name=entry.name, is_directory=True, note=note, is_whole=bool(note))
    kind = file_kind(Path(entry.name))
    if wanted == "dataset" and kind in BUILDERS:
        return Place(name=entry.name, is_directory=False, note=_size(entry), is_whole=True)
    return None


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _directory_note(path: Path, wanted: Wanted) -> str:
    # Path.is_file raises for a directory that may not be entered, which hides no other here.
    if wanted == "model" and os.path.isfile(path / "config.json"):
        return "model"
    if wanted == "dataset" and any(os.path.isfile(path / name) for name in _DATA_MARKERS):
        return "saved dataset"
    return ""


def _size(entry: os.DirEntry[str]) -> str:
    from autotune.units import format_bytes

    try:
        return format_bytes(entry.stat().st_size)
    except OSError:
        return ""


def path_of(text: str) -> Path:
    """The path that a text names; `~` of nobody that is known here stays as it is."""
    # Path.expanduser raises for that, at a text that is only half typed.
    return Path(os.path.expanduser(text))


def runs_in(root: Path) -> tuple[list[RunDirectory], str]:
    """The runs in a directory, newest first; where there are none, also why."""
    try:
        found = list_runs(root)
    except UsageError as error:
        return [], error.cause
    return found[::-1], "" if found else f"There is no run in {root} yet."


def split(text: str) -> tuple[Path, str]:
    """The directory that a beginning of a path is in, and what its name begins with."""
    path = path_of(text)
    if not text or text.endswith("/"):
        return path, ""
    return path.parent, path.name


def completion(text: str, wanted: Wanted) -> str | None:
    """The text with the name completed that fits first, or None where none does."""
    directory, beginning = split(text)
    if not beginning:
        return None
    try:
        places = listed(directory, wanted)
    except (OSError, ValueError):
        # It is none, or what was typed can be none.
        return None
    for place in places:
        if place.name.casefold().startswith(beginning.casefold()):
            rest = place.name[len(beginning) :]
            return f"{text}{rest}{'/' if place.is_directory and not place.is_whole else ''}"
    return None


def shortened(path: Path) -> str:
    """The path as somebody here would type it: relative where it is below, else absolute."""
    path = path_of(str(path))
    try:
        here = Path.cwd()
    except OSError:
        # Somebody removed the directory that this program was started in.
        return str(path)
    whole = Path(os.path.normpath(here / path))
    try:
        return str(whole.relative_to(here))
    except ValueError:
        return str(whole)
