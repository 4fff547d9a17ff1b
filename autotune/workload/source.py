"""Where the rows of a workload come from, and how `datasets` is asked for them.

Knows names and paths only, so that the engine, the loader and an exported script agree on one call.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import JsonValue

from autotune.errors import WorkloadError
from autotune.workload.spec import WorkloadSpec

BUILDERS: Mapping[str, tuple[str, Mapping[str, JsonValue]]] = {
    ".csv": ("csv", {}),
    ".tsv": ("csv", {"sep": "\t"}),
    ".json": ("json", {}),
    ".jsonl": ("json", {}),
    ".ndjson": ("json", {}),
    ".parquet": ("parquet", {}),
    ".arrow": ("arrow", {}),
    ".txt": ("text", {}),
    ".text": ("text", {}),
    ".md": ("text", {}),
    ".rst": ("text", {}),
}
"""File ending → builder of `datasets.load_dataset`, and its options."""

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Endings that `datasets` unpacks by itself."""

DOCUMENTS = (".md", ".rst", ".text")
"""Endings of texts that `datasets` does not find by itself in a directory."""

KINDS_IN_WORDS = "CSV, TSV, JSON, JSON lines, Parquet, Arrow or text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One call that yields the rows."""

    kind: Literal["load_dataset", "load_from_disk"]
    path: str
    """First argument of the call: a builder, a hub name or a directory."""
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    """Further arguments of `load_dataset`."""
    split: str | None = None
    """For `load_from_disk`: which member of the dictionary, or None where there is only one."""
    is_hub: bool = False


def file_kind(path: Path) -> str:
    """The ending that decides how a file is read, without that of a compression."""
    endings = [ending.lower() for ending in path.suffixes]
    if endings and endings[-1] in COMPRESSED:
        endings.pop()
    return endings[-1] if endings else ""


def files_of_known_kind(directory: Path) -> list[Path]:
    """The files below a directory for which there is a reader, in order."""
    return sorted(
        file for file in directory.rglob("*") if file.is_file() and file_kind(file) in BUILDERS
    )


def empty_file(path: Path) -> WorkloadError:
    """The error that tells of a file without a single byte."""
    return WorkloadError(f"The dataset {path} is empty.", "Give a file with training samples.")


def source_of(spec: WorkloadSpec) -> Source:
    """How the rows of `spec` are loaded; its paths must be resolved.

    Raises:
        WorkloadError: There is no dataset, no reader for this kind of file, or nothing in it.
    """
    if spec.dataset is None:
        raise WorkloadError("No dataset was given.", "Name one with --dataset, or try --demo.")
    path = Path(spec.dataset)
    if os.path.isfile(path):
        kind = file_kind(path)
        if path.stat().st_size == 0:
            raise empty_file(path)
        if kind not in BUILDERS:
            raise WorkloadError(
                f"The dataset {path} is of an unknown kind ({kind or 'no file ending'}).",
                f"Give a {KINDS_IN_WORDS} file, a directory of them, or one written with "
                "save_to_disk.",
            )
        builder, options = BUILDERS[kind]
        # `datasets` takes every file name as a pattern.
        return _files(builder, glob.escape(str(path)), spec, options)
    if os.path.isfile(path / "dataset_dict.json"):
        return Source(kind="load_from_disk", path=str(path), split=spec.split)
    if os.path.isfile(path / "state.json"):
        return Source(kind="load_from_disk", path=str(path))
    if os.path.isdir(path):
        kinds = {file_kind(file) for file in files_of_known_kind(path)}
        if not kinds:
            raise WorkloadError(
                f"The directory {path} holds no file of a known kind.",
                f"Give a directory with {KINDS_IN_WORDS} files.",
            )
        if kinds <= set(DOCUMENTS):
            ending = kinds.pop() if len(kinds) == 1 else ""
            return _files("text", f"{glob.escape(str(path))}/**/*{ending}", spec)
    named: dict[str, JsonValue] = {"name": spec.dataset_config} if spec.dataset_config else {}
    return Source(
        kind="load_dataset",
        path=spec.dataset,
        options={**named, "split": spec.split},
        is_hub=not os.path.exists(path),
    )


def _files(
    builder: str,
    pattern: str,
    spec: WorkloadSpec,
    options: Mapping[str, JsonValue] = MappingProxyType({}),
) -> Source:
    name = re.split(r"\W", spec.split, maxsplit=1)[0] or "train"
    return Source(
        kind="load_dataset",
        path=builder,
        options={**options, "data_files": {name: pattern}, "split": spec.split},
    )
