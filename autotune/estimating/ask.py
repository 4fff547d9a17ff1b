"""What fits on a device, from a job's description: trace, reckon, and keep the answer.

A question that was asked before is answered from the cache without any training library.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.configuration import Checkpointing
from autotune.cost.memory.allocator_settings import UNCHANGED, AllocatorSettings
from autotune.cost.memory.outside import ALONE, READINGS, Ranks, Target
from autotune.errors import AutotuneError, NothingFeasible
from autotune.run_directory import write_json
from autotune.workload.digest import workload_digest
from autotune.workload.spec import WorkloadSpec
from probes import store

if TYPE_CHECKING:
    # A kept answer is told without the codecs that these come with.
    from autotune.events import Document
    from autotune.request import Driver

_LIBRARIES = ("torch", "transformers", "accelerate", "peft")
_NUM_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """What is asked of an estimate."""

    spec: WorkloadSpec
    """Resolved, except for the demo. Without a dataset, samples are made up."""
    target: Target
    ranks: Ranks = ALONE
    settings: AllocatorSettings = UNCHANGED
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    """A size that the table must have."""
    driver: Driver = "trainer"
    forms: tuple[Checkpointing, ...] | None = None
    """Checkpointing forms of the table; None is all that are ever tried."""
    working_directory: str = field(default_factory=os.getcwd)

    @property
    def has_made_up_samples(self) -> bool:
        """Whether there is no data to take samples from."""
        return self.spec.dataset is None and not self.spec.demo

    @property
    def _readings(self) -> list[object]:
        """What was measured of the machine and counts."""
        machine = self.target.machine
        if machine is None:
            return []
        readings = [*machine.readings, *(r for link in machine.links for r in link.readings)]
        return [[r.name, r.value] for r in readings if r.name in READINGS]

    @property
    def digest(self) -> str:
        """Changes whenever the answer may."""
        device = asdict(replace(self.target, machine=None)) | {
            "readings": self._readings,
            "num_threads": self.target.num_threads,
        }
        parts = [
            workload_digest(self.spec),
            device,
            asdict(self.ranks),
            asdict(self.settings),
            self.global_batch_size,
            self.micro_batch_size,
            self.driver,
            self.forms and [asdict(form) for form in self.forms],
            _versions(),
            _code_digest(),
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def estimate(
    request: EstimateRequest,
    *,
    fresh: bool = False,
    on_stage: Callable[[str], None] | None = None,
) -> Document:
    """The public document of an estimate; where nothing fits, its `error` says what is missing.

    Args:
        request: What is asked.
        fresh: Trace and reckon again, though the answer is kept.
        on_stage: Is told what is being done, where that takes a while.

    Raises:
        AutotuneError: The job makes no sense, or cannot be traced.
    """
    file = _file(request.digest)
    if file is not None and not fresh:
        with contextlib.suppress(OSError, ValueError):
            kept: Document = json.loads(file.read_bytes())
            return kept
    if on_stage is not None:
        on_stage("Tracing a training step on tensors without data …")
    answer = _reckoned(request, fresh=fresh)
    if file is not None:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, answer)
            _forget_oldest(file.parent)
    return answer


def error_of(document: Document) -> AutotuneError | None:
    """The error that a document tells, as one of ours."""
    error = document.get("error")
    if not isinstance(error, Mapping):
        return None
    remedy = error.get("remedy")
    return NothingFeasible(str(error.get("cause")), None if remedy is None else str(remedy))


def _reckoned(request: EstimateRequest, *, fresh: bool) -> Document:
    # numpy and the traces' codec are not needed for a kept answer.
    from autotune.cost.memory import estimate as estimates
    from autotune.cost.memory.question import Question
    from autotune.estimating.document import document
    from autotune.tracing.client import trace_workload
    from autotune.tracing.request import ALL_FORMS, TraceRequest
    from autotune.tracing.request import Target as TraceTarget

    wanted = TraceRequest(
        workload=request.spec,
        target=TraceTarget(
            kind=request.target.kind,
            capability=request.target.capability,
            num_threads=request.target.num_threads,
        ),
        forms=ALL_FORMS if request.forms is None else request.forms,
        driver=request.driver,
        with_evaluation=False,
        # Of real data the data themselves are asked; of made-up samples the worst is taken.
        is_padded=not request.spec.packing if request.has_made_up_samples else None,
        working_directory=request.working_directory,
    )
    with tempfile.TemporaryDirectory(prefix="autotune-estimate-") as scratch:
        cache = Path(scratch) / "traces" if fresh else None
        traced = trace_workload(wanted, scratch=Path(scratch), cache=cache)
    if not traced.steps:
        why = traced.untraced[0].reason if traced.untraced else "no form was asked for"
        raise AutotuneError(
            f"A training step of {traced.facts.name} cannot be traced: {why.rstrip('.')}.",
            "Measure it instead, on the device: autotune tune.",
        )
    answer = estimates.estimate(
        traced,
        Question(
            target=request.target,
            ranks=request.ranks,
            settings=request.settings,
            global_batch_size=request.global_batch_size,
            micro_batch_sizes=()
            if request.micro_batch_size is None
            else (request.micro_batch_size,),
        ),
    )
    return document(answer, task=request.spec.task, is_made_up=request.has_made_up_samples)


@cache
def _code_digest() -> str:
    """Of the modules that an answer comes from, so that none outlives what made it."""
    here = Path(__file__).parents[1]
    rooms = ("estimating", "cost/memory", "tracing", "trial", "workload")
    files = [file for room in rooms for file in here.glob(f"{room}/**/*.py")]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _versions() -> list[str]:
    found = []
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return found


def _file(digest: str) -> Path | None:
    directory = store.cache_directory()
    return None if directory is None else directory / "estimates" / f"{digest}.json"


def _forget_oldest(directory: Path) -> None:
    files = sorted(directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in files[:-_NUM_KEPT]:
        path.unlink(missing_ok=True)
