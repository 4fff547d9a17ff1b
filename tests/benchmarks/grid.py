"""Measures a whole grid: every candidate of a job, those that run out of memory included."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

from autotune.configuration import Configuration
from autotune.errors import AutotuneError
from autotune.goal import MARGIN_FRACTION, Budget, Goal, usable_bytes
from autotune.journal import Journal
from autotune.outcome import Measured, MemoryUse, Outcome, OutOfMemory, Speed
from autotune.request import Request
from autotune.run_directory import RunDirectory
from autotune.search.evidence.statistics import samples_per_s_interval
from autotune.search.preparation import Prepared, prepare_job
from autotune.search.session import Session
from autotune.search.trials import TrialPlan, as_outcome, measured
from autotune.starting import library_versions
from autotune.trial.environment import trial_environment
from autotune.trial.protocol import MeasureMemory, MeasureSpeed, MemoryMeasured, SpeedMeasured
from autotune.units import format_bytes
from probes.machine import Machine
from tests.benchmarks.harness import Context, say
from tests.benchmarks.jobs import QUICK_GLOBAL_BATCH_SIZE, Job
from tests.testing.landscapes import Entry, Landscape

NEAR_THE_FASTEST = 0.85
"""What reaches this part of the fastest rate is timed in a second pass: a machine that is faster
or slower for some minutes must not make one configuration look the best."""
MAX_STEPS = 3
"""Timed steps of a configuration in a pass; all train on the same rows and are compared so."""
MAX_SECONDS = 1.0
ORDER_SEED = 0
"""Configurations are measured in a shuffled order, so that a slow minute hits no form alone."""
TIME_LIMIT_S = 600.0
NEAR_THE_CUT = 1
"""How many configurations more or fewer than wanted a limit may rule out, to fall into a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A measured grid, and what is needed to measure some of it again."""

    job: Job
    landscape: Landscape
    limit_bytes: int | None
    """The memory limit that was chosen for it; None is what the machine has."""
    limit_text: str
    """What the limit is and how it was chosen."""
    request: Request
    machine: Machine
    plan: TrialPlan
    wall_s: float

    @property
    def environment(self) -> dict[str, str]:
        """Variables that its trials ran under."""
        return trial_environment(self.machine.host.num_threads)

    @property
    def num_out_of_memory(self) -> int:
        """Configurations that ran out of memory."""
        return sum(isinstance(e.outcome, OutOfMemory) for e in self.landscape.entries)


@contextmanager
def session_of(context: Context, name: str) -> Iterator[Session]:
    """A session in a run directory of its own below the scratch space."""
    run = RunDirectory(context.directory / name)
    run.create()
    with Journal(run.journal, run.progress) as journal:
        yield Session(run, journal, seconds=Budget().seconds)


@cache
def measure_grid(context: Context, job: Job) -> Grid:
    """Measures every candidate, once for all that ask.

    Raises:
        AutotuneError: The job cannot be loaded.
    """
    size = QUICK_GLOBAL_BATCH_SIZE if context.quick else job.global_batch_size
    request = Request(workload=job.spec(), goal=Goal(global_batch_size=size))
    start_s = time.perf_counter()
    with session_of(context, f"grid-{job.name}") as session, prepare_job(session, request) as job_:
        if job_ is None:
            raise AutotuneError("Measuring the grid was stopped.")
        return _measure(context, job, request, session, job_, start_s)


def _measure(
    context: Context,
    job: Job,
    request: Request,
    session: Session,
    prepared: Prepared,
    start_s: float,
) -> Grid:
    candidates = list(prepared.space.candidates)
    order = random.Random(ORDER_SEED)
    order.shuffle(candidates)
    say(f"measures {len(candidates)} configurations of {job.title}")
    meter = _Meter(session, prepared)
    limit_bytes, usable = None, prepared.usable_bytes
    limit_text = f"The memory limit is what the machine has, {format_bytes(usable)} usable."
    readings: dict[Configuration, MemoryUse] = {}
    if job.fraction_out:
        readings = {c: meter.memory_without_limit(c) for c in candidates}
        limit_bytes = choose_limit([m.total_bytes for m in readings.values()], job.fraction_out)
        usable = usable_bytes(limit_bytes, on_device=False)
        num_above = sum(m.total_bytes > usable for m in readings.values())
        limit_text = (
            f"The memory limit of {format_bytes(limit_bytes)}, of which {format_bytes(usable)} may "
            f"be filled, was chosen after the peak of every configuration was read without one, so "
            f"that it rules out {num_above} of {len(candidates)}."
        )
    outcomes: dict[Configuration, Outcome] = {}
    for configuration in candidates:
        outcomes[configuration] = meter.outcome(
            configuration, usable, readings.get(configuration), None
        )
    near = [] if context.quick else _near_the_fastest(outcomes)
    say(f"measures {len(near)} of them, which are near the fastest, once more")
    order.shuffle(near)
    for configuration in near:
        outcomes[configuration] = meter.outcome(
            configuration, usable, None, outcomes[configuration]
        )
    entries = {c: Entry(configuration=c, outcome=outcome) for c, outcome in outcomes.items()}
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    host = prepared.machine.host
    return Grid(
        job=job,
        landscape=Landscape(
            name=f"{job.title}, global batch size {prepared.space.global_batch_size}",
            space=prepared.space,
            entries=tuple(entries[c] for c in prepared.space.candidates),
            usable_bytes=usable,
            gradient_bytes=prepared.gradient_bytes,
            origin=f"Measured on {host.processor}, {host.num_cores:g} cores, with {versions}. "
            f"{limit_text}",
        ),
        limit_bytes=limit_bytes,
        limit_text=limit_text,
        request=request,
        machine=prepared.machine,
        plan=replace(prepared.plan, limit_bytes=usable, time_limit_s=TIME_LIMIT_S),
        wall_s=time.perf_counter() - start_s,
    )


def _near_the_fastest(outcomes: Mapping[Configuration, Outcome]) -> list[Configuration]:
    rates = {c: o.samples_per_s for c, o in outcomes.items() if isinstance(o, Measured)}
    least = NEAR_THE_FASTEST * max(rates.values(), default=0.0)
    return [c for c, rate in rates.items() if rate >= least]


def choose_limit(needs_bytes: Sequence[int], fraction_out: float) -> int:
    """A memory limit that rules out about a fraction of what was read.

    It lies in the middle of the widest gap near the wanted place, so that no reading falls on
    either side by chance; the margin that tuning leaves free is added.
    """
    ordered = sorted(needs_bytes)
    wanted = round(len(ordered) * (1 - fraction_out))
    near = range(wanted - NEAR_THE_CUT, wanted + NEAR_THE_CUT + 1)
    place = max(
        (p for p in near if 0 < p < len(ordered)), key=lambda p: ordered[p] - ordered[p - 1]
    )
    usable = (ordered[place - 1] + ordered[place]) // 2
    return math.ceil(usable / (1 - MARGIN_FRACTION))


class _Meter:
    """Measures one configuration after another in forks of a warm worker, as trials do."""

    def __init__(self, session: Session, prepared: Prepared) -> None:
        self._pool = prepared.pool
        self._repair_loss = prepared.plan.repair_loss
        self._log = session.run.trial(0) / "output.log"
        self._enough_bytes = prepared.usable_bytes

    def memory_without_limit(self, configuration: Configuration) -> MemoryUse:
        """The peak under what the machine has.

        Raises:
            AutotuneError: Even that does not suffice, or the configuration fails.
        """
        reply = self._memory(configuration, self._enough_bytes)
        if not isinstance(reply, MemoryMeasured):
            cause = getattr(reply, "cause", "no answer")
            raise AutotuneError(f"The peak of {configuration} could not be read: {cause}")
        return reply.memory

    def outcome(
        self,
        configuration: Configuration,
        usable: int,
        memory: MemoryUse | None,
        earlier: Outcome | None,
    ) -> Outcome:
        """What a trial of the search would have found.

        Args:
            configuration: What is measured.
            usable: Bytes that it may occupy.
            memory: Its peak where that was read; above `usable` it is run again, to see it fail.
            earlier: What an earlier pass found; its steps count as well.
        """
        if earlier is not None and not isinstance(earlier, Measured):
            return earlier
        if earlier is not None:
            memory = earlier.memory
        if memory is None or memory.total_bytes > usable:
            reply = self._memory(configuration, usable)
            if not isinstance(reply, MemoryMeasured):
                return as_outcome(reply, self._log)
            memory = reply.memory
        timed = self._pool.ask(
            MeasureSpeed(
                configuration=configuration,
                min_steps=1,
                max_steps=MAX_STEPS,
                num_warmup_steps=1,
                max_seconds=MAX_SECONDS,
                with_phases=False,
                repair_loss=self._repair_loss,
            ),
            log=self._log,
            time_limit_s=TIME_LIMIT_S,
        )
        if not isinstance(timed, SpeedMeasured) or timed.speed is None:
            return as_outcome(timed, self._log)
        speed = timed.speed if earlier is None else _joined(earlier.speed, timed.speed)
        return measured(timed, speed, memory, samples_per_s_interval)

    def _memory(self, configuration: Configuration, limit_bytes: int) -> object:
        return self._pool.ask(
            MeasureMemory(
                configuration=configuration,
                limit_bytes=limit_bytes,
                repair_loss=self._repair_loss,
            ),
            log=self._log,
            time_limit_s=TIME_LIMIT_S,
        )


def _joined(one: Speed, other: Speed) -> Speed:
    """The mean of both passes, step by step: the n-th step trains on the same rows in each."""
    num = min(len(one.step_times_s), len(other.step_times_s))
    pairs = zip(one.step_times_s, other.step_times_s, strict=False)
    return Speed(
        step_times_s=tuple((first_s + second_s) / 2 for first_s, second_s in pairs),
        step_samples=one.step_samples[:num],
        step_tokens=one.step_tokens[:num],
        losses=one.losses[:num],
        num_warmup_steps=one.num_warmup_steps,
    )
