"""Reads the column names of a local dataset without loading it."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

from autotune.workload.source import file_kind
from autotune.workload.spec import WorkloadSpec


def header_of(spec: WorkloadSpec) -> list[str] | None:
    """The column names, or None where finding them out means loading the data.

    A file that cannot be read yields None as well: the loader then says what is wrong with it.
    """
    path = Path(spec.dataset or "")
    try:
        if os.path.isdir(path):
            return _saved(path, spec.split)
        return _file(path)
    except (OSError, ValueError, LookupError, TypeError, csv.Error):
        return None


def _file(path: Path) -> list[str] | None:
    kind = file_kind(path)
    if kind != path.suffix.lower():
        return None
    if kind in (".csv", ".tsv"):
        with path.open(encoding="utf-8-sig", newline="") as file:
            return next(csv.reader(file, delimiter="\t" if kind == ".tsv" else ","), None)
    if kind in (".jsonl", ".ndjson"):
        with path.open(encoding="utf-8") as file:
            row = json.loads(file.readline())
        return list(row) if isinstance(row, dict) else None
    if kind == ".parquet":
        import pyarrow.parquet

        return list(pyarrow.parquet.read_schema(path).names)
    return None


def _saved(path: Path, split: str) -> list[str] | None:
    for info in (path / "dataset_info.json", path / split / "dataset_info.json"):
        if os.path.isfile(info):
            return list(json.loads(info.read_text(encoding="utf-8"))["features"])
    return None
