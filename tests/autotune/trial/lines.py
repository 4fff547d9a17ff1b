"""Workers in the process of the test, and both ends of their channel."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Literal

from autotune.configuration import Configuration
from autotune.trial.channel import Channel
from autotune.trial.protocol import (
    Command,
    Envelope,
    MeasureMemory,
    Progress,
    Ready,
    envelope_adapter,
)
from autotune.trial.worker import Worker
from autotune.workload.spec import WorkloadSpec
from tests.autotune.export.jobs import quiet
from tests.autotune.trial import processes, workloads

CONFIGURATION = Configuration(micro_batch_size=4, accumulation_steps=2)
GIB = 2**30


def memory_command(limit_bytes: int = 64 * GIB) -> MeasureMemory:
    return MeasureMemory(configuration=CONFIGURATION, limit_bytes=limit_bytes)


class Line:
    """Both ends of a channel."""

    def __init__(self) -> None:
        self.engine, theirs = socket.socketpair()
        self.engine.settimeout(60)
        self.worker = Channel(theirs.detach())
        self._lines = self.engine.makefile("rb")

    def say(self, command: Command, log: Path | None = None) -> None:
        envelope = Envelope(body=command, log=str(log) if log else None)
        self.engine.sendall(envelope_adapter().dump_json(envelope) + b"\n")

    def hear(self) -> Envelope:
        """The next message that is no progress."""
        while True:
            envelope = envelope_adapter().validate_json(self._lines.readline())
            if not isinstance(envelope.body, Progress):
                return envelope

    def close(self) -> None:
        self._lines.close()
        self.engine.close()


def make(
    line: Line,
    spec: WorkloadSpec,
    place: Path,
    isolation: Literal["fork", "inline"] = "inline",
    kind: type[Worker] = Worker,
) -> Worker:
    return kind(line.worker, processes.options(spec, place, isolation=isolation))


def loaded(line: Line, place: Path, spec: WorkloadSpec | None = None) -> Worker:
    worker = make(line, spec or workloads.causal_spec(place, 21), place)
    with quiet():
        worker.load()
    assert isinstance(line.hear().body, Ready)
    return worker
