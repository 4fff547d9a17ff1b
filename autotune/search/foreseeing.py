"""Has a training step of the job traced, beside the checks that come before the first trial.

The trace runs in a fork of the worker that has loaded the workload, on one core and on no device;
it ends before anything is timed. What was traced is kept, so that neither a run that goes on nor
the next run of the same job traces again. What cannot be traced is left to trials, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import JsonValue

from autotune.configuration import Checkpointing, Configuration
from autotune.cost.memory import allocator_settings
from autotune.cost.memory.allocator_settings import AllocatorSettings
from autotune.cost.memory.foresight import Foresight, Reckoner
from autotune.cost.memory.outside import target_here
from autotune.cost.memory.trace import TracedWorkload
from autotune.errors import UsageError
from autotune.events import Document, MemoryForeseen
from autotune.request import Request
from autotune.search.session import Session
from autotune.space import Space
from autotune.tracing import store
from autotune.tracing.request import ALL_FORMS, TraceRequest, request_adapter
from autotune.tracing.request import Target as TraceTarget
from autotune.trial.pool import WorkerPool
from autotune.trial.protocol import AwaitBeside, BesideEnded, BesideStarted, Ready, StartBeside
from autotune.workload.resolve import resolve
from probes.machine import Machine

TRACE_LIMIT_S = 120.0
"""A trace that is not done so long after the checks is given up."""
PART_OF_BUDGET = 0.2
"""Most of the time that is left that is waited for a trace."""
_MODULE = "autotune.tracing.beside"
WHOLE_STEP = "a training step"
"""What could not be traced, where nothing could."""


class Foreseeing:
    """One trace of one job: begun once the worker has loaded it, awaited before the first trial.

    Args:
        session: Where what is foreseen is told.
        request: What was asked for.
        machine: Where the trials run.
        limit_bytes: What the training process may occupy.
        environment: Variables of the trials.
        traces: Whether to trace where no earlier run did.
    """

    def __init__(
        self,
        session: Session,
        request: Request,
        machine: Machine,
        limit_bytes: int,
        environment: Mapping[str, str],
        *,
        traces: bool,
    ) -> None:
        self._session = session
        self._request = request
        self._environment = environment
        self._traces = traces
        self._target = target_here(
            machine, total_bytes=limit_bytes, total_from="the limit of the run"
        )
        self._process_bytes = 0
        self._key = ""
        self._kept: TracedWorkload | None = None
        self._failure: str | None = None

    def begin(self, pool: WorkerPool, ready: Ready, baseline: Configuration) -> None:
        """Takes a kept trace, or starts one beside what is asked of the worker next."""
        self._process_bytes = ready.level_bytes
        wanted = self._wanted(baseline.checkpointing)
        self._key = store.key_of(wanted)
        for directory in (store.default_directory(), self._session.run.path):
            self._kept = self._kept or store.load(self._key, directory)
        if self._kept is not None or not self._traces:
            return
        file = store.file_of(self._session.run.path.absolute(), self._key)
        file.parent.mkdir(exist_ok=True)
        document: dict[str, JsonValue] = {
            "request": request_adapter().dump_python(wanted, mode="json"),
            "file": str(file),
        }
        reply = pool.ask(
            StartBeside(module=_MODULE, document=document),
            log=self._session.run.path / "trace.log",
            time_limit_s=TRACE_LIMIT_S,
        )
        if not isinstance(reply, BesideStarted):
            self._failure = getattr(reply, "cause", reply.kind)

    def end(self, pool: WorkerPool, space: Space) -> Foresight | None:
        """What is foreseen of a space, once the trace is done; told as an event."""
        traced, is_kept = self._kept, self._kept is not None
        if traced is None and self._traces:
            traced = self._awaited(pool)
        if self._session.is_stopped() or (traced is None and not self._traces):
            return None
        foresight = self._foresight(traced)
        self._session.emit(
            MemoryForeseen(
                candidates=tuple(_candidates(foresight, space)),
                untraced=tuple(self._untraced(traced, space)),
                trace_s=traced.facts.seconds if traced is not None else 0.0,
                from_store=is_kept,
            )
        )
        return foresight

    def _wanted(self, own: Checkpointing) -> TraceRequest:
        request = self._request
        scratch = self._session.run.workload.absolute()
        forms = ALL_FORMS if own in ALL_FORMS else (*ALL_FORMS, own)
        return TraceRequest(
            workload=resolve(request.workload, scratch, Path(request.working_directory)),
            target=TraceTarget(
                kind=self._target.kind,
                capability=self._target.capability,
                num_threads=self._target.num_threads,
            ),
            forms=forms,
            driver=request.driver,
            working_directory=request.working_directory,
        )

    def _awaited(self, pool: WorkerPool) -> TracedWorkload | None:
        """The trace that was begun; None where it failed, and then `_failure` says why."""
        if self._failure is not None:
            return None
        limit_s = round(min(TRACE_LIMIT_S, max(1.0, PART_OF_BUDGET * self._session.remaining_s)))
        reply = pool.ask(
            AwaitBeside(time_limit_s=limit_s),
            log=self._session.run.path / "trace.log",
            time_limit_s=2 * limit_s + 10.0,
        )
        if not isinstance(reply, BesideEnded):
            self._failure = getattr(reply, "cause", reply.kind)
            return None
        run = self._session.run.path
        traced = store.load(self._key, run)
        if traced is None:
            self._failure = "its result cannot be read"
            return None
        if (cache := store.default_directory()) is not None:
            store.save(self._key, store.file_of(run, self._key).read_text(), cache)
        return traced

    def _foresight(self, traced: TracedWorkload | None) -> Foresight | None:
        if traced is None or not traced.steps:
            return None
        return Foresight(
            reckoner=Reckoner(
                traced,
                self._target,
                settings=_settings(self._environment),
                process_bytes=self._process_bytes,
            )
        )

    def _untraced(self, traced: TracedWorkload | None, space: Space) -> Iterator[Document]:
        """What trials have to tell, by what this space needs."""
        if traced is None:
            yield {"what": WHOLE_STEP, "reason": self._failure or "it ended without a result"}
            return
        for found in traced.untraced:
            if found.checkpointing is None or found.checkpointing in space.forms:
                yield {"what": found.what, "reason": found.reason}


def _candidates(foresight: Foresight | None, space: Space) -> Iterator[Document]:
    for candidate in space.candidates if foresight is not None else ():
        need = foresight.need(candidate) if foresight is not None else None
        if need is not None:
            document: Document = candidate.to_json()  # type: ignore[assignment]
            yield {"configuration": document, "predicted": {**need.to_json()}}


def _settings(environment: Mapping[str, str]) -> AllocatorSettings:
    try:
        return allocator_settings.from_environment(environment)
    except UsageError:
        # The trials will say what torch thinks of it.
        return allocator_settings.UNCHANGED
