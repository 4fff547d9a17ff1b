"""One name for what is trained: it changes whenever model, data or training choices change."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from autotune.workload.spec import WorkloadSpec

_SMALL_BYTES = 1 << 20
"""Files up to this size are known by their content, larger ones by size and time."""


def workload_digest(spec: WorkloadSpec) -> str:
    """A digest of a resolved spec and of the files that it names, wherever they stand."""
    places = {
        name: _identity(value)
        for name in ("model", "model_config", "tokenizer", "dataset")
        if (value := getattr(spec, name)) is not None
    }
    choices = asdict(replace(spec, model=None, model_config=None, tokenizer=None, dataset=None))
    text = json.dumps([places, choices], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _identity(place: str) -> list[str]:
    path = Path(place)
    if os.path.isfile(path):
        return [_file_identity(path)]
    if os.path.isdir(path):
        files = sorted(p for p in path.rglob("*") if p.is_file())
        return [f"{p.relative_to(path).as_posix()} {_file_identity(p)}" for p in files]
    return [place]


def _file_identity(path: Path) -> str:
    status = path.stat()
    if status.st_size <= _SMALL_BYTES:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{status.st_size} bytes, {status.st_mtime_ns} ns"
