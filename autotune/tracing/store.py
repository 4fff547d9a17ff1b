"""Traces kept between runs: the same request on the same code has the same trace."""

from __future__ import annotations

import contextlib
import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from autotune.cost.memory import codec
from autotune.cost.memory.trace import TracedWorkload
from autotune.run_directory import write_atomically
from autotune.tracing.request import TraceRequest, request_adapter
from autotune.workload.digest import workload_digest
from autotune.workload.spec import Capsule
from probes.store import cache_directory

_LIBRARIES = ("autotune-advisor", "torch", "transformers", "accelerate", "peft")
_NUM_KEPT = 32


def key_of(request: TraceRequest) -> str:
    """Changes whenever the trace may: with model files, choices, data files and code.

    The spec of the request must be resolved, so that its paths are absolute.
    """
    workload = request.workload
    digest = workload.digest if isinstance(workload, Capsule) else workload_digest(workload)
    asked = request_adapter().dump_python(request, mode="json")
    del asked["workload"], asked["working_directory"]
    described = [digest, asked, _versions(), codec.FORMAT, _code()]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def load(key: str, directory: Path | None) -> TracedWorkload | None:
    """The kept trace; None if there is none that can be read.

    Args:
        key: Of its request.
        directory: The cache; None keeps nothing.
    """
    if directory is None:
        return None
    try:
        return codec.from_json(json.loads(file_of(directory, key).read_bytes()))
    except (OSError, ValueError):
        return None


def save(key: str, text: str, directory: Path | None) -> None:
    """Keeps a trace, where that is possible.

    Args:
        key: Of its request.
        text: Its JSON document.
        directory: The cache; None keeps nothing.
    """
    if directory is None:
        return
    file = file_of(directory, key)
    with contextlib.suppress(OSError):
        write_atomically(file, text)
        kept = sorted(file.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in kept[:-_NUM_KEPT]:
            path.unlink(missing_ok=True)


def default_directory() -> Path | None:
    """The user's cache; None where there is none."""
    return cache_directory()


def file_of(directory: Path, key: str) -> Path:
    """Where the trace of a key is kept below a directory."""
    return directory / "traces" / f"{key[:32]}.json"


def _versions() -> list[str]:
    found = []
    for name in _LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(name)
    return found


def _code() -> str:
    """Of the modules that trace: a changed one may trace otherwise."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for room in ("tracing", "trial", "workload"):
        for path in sorted((package / room).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
