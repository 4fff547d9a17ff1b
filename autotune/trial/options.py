"""What the engine tells a worker at its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What a worker loads, and how it measures."""

    spec: dict[str, object]
    """The resolved workload, as JSON."""
    scratch: str
    working_directory: str
    driver: Literal["trainer", "accelerate"]
    isolation: Literal["fork", "inline"]
    others_bytes: int = 0
    """Device memory that other processes hold."""
    place: dict[str, object] | None = None
    """Of one of several ranks, as JSON; None measures alone."""
