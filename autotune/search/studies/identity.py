"""What must be the same for two engines to share a study, and the name that follows from it.

Trials of different machines, libraries, limits or workloads cannot be compared. All of that is in
the name of the study, so that engines that differ in any of it never meet in one.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.request import Request
from autotune.search.evidence.history import History
from autotune.starting import library_versions

SCHEMA = 2
"""Of what a study holds: another number makes other names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyIdentity:
    """What must be the same for two runs to share a study."""

    stem: str
    """Name of the workload, for readers."""
    parts: Mapping[str, str]
    """Digests or values of the space, the workload, the machine, …, by these words."""

    @property
    def readable_stem(self) -> str:
        """The workload's name as far as a study's name can hold it."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.stem).strip("-.")[:64] or "study"

    @property
    def name(self) -> str:
        """The study's name: the workload and a digest of all parts."""
        text = json.dumps([SCHEMA, dict(self.parts)], sort_keys=True)
        return f"{self.readable_stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def identity_of(request: Request, history: History, *, digest: str, machine: str) -> StudyIdentity:
    """The identity of the study that a run works on.

    Args:
        request: What was asked for.
        history: Its space, and what may be filled of the memory.
        digest: Of the workload.
        machine: Equal for machines whose trials can be compared.
    """
    return StudyIdentity(
        stem=request.workload.name,
        parts={
            "space": history.space.digest,
            "workload": digest,
            "machine": machine,
            "memory limit": _memory_limit(request, history),
            "training loop": request.driver,
            "set of ranks": _ranks(request),
            "set of libraries": ", ".join(f"{n} {v}" for n, v in library_versions().items()),
        },
    )


def _ranks(request: Request) -> str:
    """How many ranks there may be, and where.

    What joins several nodes is part of what is measured, and nothing tells whether two networks are
    alike: such trials are shared only by runs from the same first node.
    """
    ranks = f"{request.processes}, one stands for all" if request.alone else f"{request.processes}"
    if request.num_nodes > 1:
        ranks += f" on {request.num_nodes} nodes, the first of them {socket.gethostname()}"
    return ranks


def _memory_limit(request: Request, history: History) -> str:
    """What may be filled, where somebody set it.

    What is free changes from minute to minute, so it sets no runs apart: the history holds every
    outcome against what may be filled here and now.
    """
    if request.goal.memory_limit_bytes is None:
        return "what is free"
    return f"{history.usable_bytes} bytes may be filled"
