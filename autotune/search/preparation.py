"""What a run finds out before its first trial: machine, workload, parity, checkpointing, space."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from autotune.configuration import Configuration
from autotune.cost.memory.foresight import Foresight
from autotune.events import (
    MachineProbed,
    ParityChecked,
    ProbeStarted,
    SpacePlanned,
    WorkloadLoaded,
)
from autotune.goal import usable_bytes
from autotune.outcome import Stopped
from autotune.request import Request
from autotune.search.baseline import baseline_of
from autotune.search.foreseeing import Foreseeing
from autotune.search.limits import memory_limit, num_local_ranks, warn_about_machine
from autotune.search.parity import CHECK_LIMIT_S, check_parity
from autotune.search.session import Session
from autotune.search.trials import TrialPlan
from autotune.space import EVERY_N_LAYERS, Space, plan
from autotune.trial.environment import trial_environment
from autotune.trial.options import WorkerOptions
from autotune.trial.pool import WorkerPool
from autotune.trial.process import forget_scratch
from autotune.trial.protocol import (
    CheckpointingTried,
    Ready,
    TryCheckpointing,
)
from autotune.workload.facts import CheckpointingForm, WorkloadFacts
from autotune.workload.resolve import resolve
from autotune.workload.spec import workload_adapter
from probes.known import known_machine
from probes.machine import Machine, Reading, machine_adapter
from probes.survey import SurveyProgress

TRIAL_TIME_FRACTION = 0.5
"""Part of the budget that is spent inside timed steps, spread over the trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything that is settled before the search."""

    machine: Machine
    usable_bytes: int
    facts: WorkloadFacts
    pool: WorkerPool
    space: Space
    plan: TrialPlan
    gradient_bytes: int
    foresight: Foresight | None = None
    """What is predicted of memory; None where nothing could be traced."""

    @property
    def digest(self) -> str:
        """Changes whenever workload or training choices change."""
        return self.facts.digest


@contextmanager
def prepare_job(
    session: Session, request: Request, *, traces: bool = True
) -> Iterator[Prepared | None]:
    """Probes, loads and checks; every worker is ended when the block is left.

    Args:
        session: Where events go and requests come from.
        request: What was asked for.
        traces: Whether a training step is traced where no earlier run did.

    Yields:
        What the search needs; None where the run was stopped meanwhile.

    Raises:
        UsageError: The request cannot work; cause and remedy say why.
    """
    scratch = session.run.workload.absolute()
    scratch.mkdir(parents=True, exist_ok=True)
    # What is wrong with the request is said before anything is measured.
    resolve(request.workload, scratch, Path(request.working_directory))
    machine = _machine(session)
    if machine is None:
        yield None
        return
    limit_bytes, source = memory_limit(request, machine)
    on_device = machine.device.kind != "cpu"
    usable = usable_bytes(limit_bytes, on_device=on_device)
    session.emit(
        MachineProbed(
            machine=machine_adapter().dump_python(machine, mode="json"),
            from_store=machine.from_store,
            memory_limit_bytes=limit_bytes,
            usable_bytes=usable,
            limit_source=source,
        )
    )
    warn_about_machine(session, request, machine, limit_bytes)
    environment = trial_environment(machine.host.num_threads, num_local_ranks(request))
    with worker_pool(session, request, machine, environment) as pool:
        yield _check(
            session,
            request,
            machine,
            usable,
            pool,
            environment,
            foreseeing=Foreseeing(
                session, request, machine, limit_bytes, environment, traces=traces
            ),
        )


class _Stop(Exception):
    """The run is to end; nobody waits for the survey."""


def _machine(session: Session) -> Machine | None:
    """The machine as it is now; None where the run was stopped meanwhile."""

    def heed() -> None:
        session.listen()
        if session.is_stopped():
            raise _Stop

    try:
        return known_machine(
            on_progress=lambda progress: session.emit(_begun(progress)), on_wait=heed
        )
    except _Stop:
        return None


def _begun(progress: SurveyProgress) -> ProbeStarted:
    return ProbeStarted(
        probe=progress.probe,
        number=progress.number,
        num_probes=progress.num_probes,
        readings=tuple(
            TypeAdapter(Reading).dump_python(reading, mode="json") for reading in progress.readings
        ),
    )


@contextmanager
def worker_pool(
    session: Session, request: Request, machine: Machine, environment: Mapping[str, str]
) -> Iterator[WorkerPool]:
    """Workers for a request, which are ended when the block is left.

    Args:
        session: Whose run they work for.
        request: What they load.
        machine: Where they run.
        environment: Variables on top of this process's own.

    Raises:
        UsageError: The workload cannot be resolved.
    """
    scratch = session.run.workload.absolute()
    scratch.mkdir(parents=True, exist_ok=True)
    forget_scratch(scratch)
    spec = resolve(request.workload, scratch, Path(request.working_directory))
    on_device = machine.device.kind != "cpu"
    others = sum(p.used_bytes or 0 for p in machine.device.processes) if on_device else 0
    options = WorkerOptions(
        spec=workload_adapter().dump_python(spec, mode="json"),
        scratch=str(scratch),
        working_directory=request.working_directory,
        driver=request.driver,
        isolation="inline" if on_device or not hasattr(os, "fork") else "fork",
        others_bytes=others,
    )
    pool = WorkerPool(
        session.run,
        options,
        {**os.environ, **environment},
        session.why_stop_now,
        num_nodes=request.num_nodes,
        meeting=request.meeting,
        alone=request.alone,
    )
    try:
        yield pool
    finally:
        pool.close()
        forget_scratch(scratch)


def _check(
    session: Session,
    request: Request,
    machine: Machine,
    usable: int,
    pool: WorkerPool,
    environment: dict[str, str],
    *,
    foreseeing: Foreseeing,
) -> Prepared | None:
    ready = pool.ready()
    if isinstance(ready, Stopped) or session.should_end():
        return None
    facts = ready.facts
    session.emit(
        WorkloadLoaded(
            facts=TypeAdapter(WorkloadFacts).dump_python(facts, mode="json"),
            load_s=round(ready.load_s, 3),
            environment=environment,
            device=ready.device.split(":")[0],
        )
    )
    baseline = baseline_of(session, request, facts)
    foreseeing.begin(pool, ready, baseline)
    forms, saved_bytes_without = _try_checkpointing(session, pool, baseline)
    if session.should_end():
        return None
    parity = check_parity(session, pool, baseline)
    if session.should_end():
        return None
    session.emit(parity)
    space = plan(
        baseline=baseline,
        num_rows=facts.num_rows,
        forms=forms,
        saved_bytes_without=saved_bytes_without,
        fixed_micro_batch_size=_why_fixed(parity, facts),
        local_sgd=request.local_sgd,
        no_local_sgd=_why_no_local_sgd(facts),
        with_one_process=request.with_one_process and baseline.world_size > 1,
        total_steps=request.total_steps,
    )
    session.emit(
        SpacePlanned(
            candidates=tuple(c.to_json() for c in space.candidates),  # type: ignore[misc]
            ruled_out=space.ruled_out_json(),  # type: ignore[arg-type]
            baseline=baseline.to_json(),  # type: ignore[arg-type]
            digest=space.digest,
            local_sgd_steps=space.local_sgd_steps,
        )
    )
    foresight = foreseeing.end(pool, space)
    if session.should_end():
        return None
    return Prepared(
        machine=machine,
        usable_bytes=usable,
        facts=facts,
        pool=pool,
        space=space,
        plan=trial_plan(request, usable, parity),
        gradient_bytes=_gradient_bytes(facts, ready),
        foresight=foresight,
    )


def _why_no_local_sgd(facts: WorkloadFacts) -> str | None:
    """Why the ranks of this job must exchange their gradients in every step."""
    if facts.precision == "fp16":
        return "each rank would scale its fp16 loss by itself, and skip steps alone; use bf16"
    return None


def trial_plan(request: Request, usable: int, parity: ParityChecked | None) -> TrialPlan:
    """Long enough to see a difference, short enough that all trials fit the budget."""
    budget = request.budget
    per_trial_s = TRIAL_TIME_FRACTION * budget.seconds / budget.trials
    return TrialPlan(
        limit_bytes=usable,
        max_seconds=min(8.0, max(1.5, per_trial_s)),
        time_limit_s=max(120.0, budget.seconds / 2),
        repair_loss=parity is not None and parity.repaired,
        find_unused=parity is not None and bool(parity.unused_parameters),
    )


def _gradient_bytes(facts: WorkloadFacts, ready: Ready) -> int:
    """Bytes of all gradients, which have their parameters' type."""
    if not facts.num_parameters:
        return 0
    return facts.parameter_bytes * facts.num_trainable_parameters // facts.num_parameters


def _try_checkpointing(
    session: Session, pool: WorkerPool, baseline: Configuration
) -> tuple[tuple[CheckpointingForm, ...], int | None]:
    """The forms, and what is kept for the backward pass without any of them."""
    own = baseline.checkpointing.every_n_layers
    every_n_layers = sorted({*EVERY_N_LAYERS, *(() if own is None else (own,))}, reverse=True)
    reply = pool.ask(
        TryCheckpointing(every_n_layers=tuple(every_n_layers)),
        log=session.run.path / "checks.log",
        time_limit_s=CHECK_LIMIT_S,
    )
    if isinstance(reply, CheckpointingTried):
        return reply.forms, reply.saved_bytes_without
    if isinstance(reply, Stopped):
        return (), None
    reason = getattr(reply, "cause", reply.kind)
    forms = tuple(
        CheckpointingForm(
            every_n_layers=n, offload=False, is_available=False, saved_bytes=None, reason=reason
        )
        for n in sorted(every_n_layers)
    )
    return forms, None


def _why_fixed(parity: ParityChecked, facts: WorkloadFacts) -> str | None:
    """Why the micro-batch size must not change, where that is so."""
    if facts.batch_dependent_loss is not None:
        return f"the loss depends on its batch: {facts.batch_dependent_loss}"
    if parity.holds is False and not parity.repaired:
        return "the same rows train differently when they are split (loss parity fails)"
    return None
