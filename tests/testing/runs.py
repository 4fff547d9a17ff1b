"""Builders of runs: events as an engine writes them, without an engine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from autotune import request as requests
from autotune.configuration import Checkpointing, Configuration
from autotune.events import (
    BestChanged,
    Confirmed,
    Document,
    Event,
    FilesExported,
    MachineProbed,
    MemoryForeseen,
    ParityChecked,
    RecommendationMade,
    Record,
    RunEnded,
    RunStarted,
    SearchEnded,
    SpacePlanned,
    TrialFinished,
    TrialStarted,
    WorkloadLoaded,
)
from autotune.goal import Budget, Goal
from autotune.journal import Journal
from autotune.outcome import Measured, MemoryUse, Outcome, OutOfMemory, Purpose, Speed
from autotune.request import Request, request_adapter
from autotune.run_directory import RunDirectory
from autotune.workload.spec import WorkloadSpec
from probes.machine import Device, Host, Machine, machine_adapter

GIB = 1024**3
BASELINE = Configuration(micro_batch_size=8, accumulation_steps=8)
BEST = Configuration(micro_batch_size=16, accumulation_steps=4)
TOO_LARGE = Configuration(
    micro_batch_size=64, accumulation_steps=1, checkpointing=Checkpointing(every_n_layers=2)
)


def demo_request() -> Request:
    """The request of a small demo run."""
    return Request(
        workload=WorkloadSpec(task="causal-lm", demo=True),
        goal=Goal(global_batch_size=64, memory_limit_bytes=4 * GIB),
        budget=Budget(trials=12, seconds=60.0),
    )


def machine() -> Machine:
    """A small machine without an accelerator."""
    cpu = Device(
        kind="cpu",
        index=0,
        name="Test processor",
        total_bytes=8 * GIB,
        free_bytes=6 * GIB,
        memory_from="host",
    )
    host = Host(
        name="host",
        processor="Test processor",
        num_cores=2.0,
        total_bytes=8 * GIB,
        available_bytes=6 * GIB,
        limit_from="host",
        platform="Linux",
        num_threads=2,
    )
    return Machine(host=host, devices=(cpu,))


def measured(samples_per_s: float, total_bytes: int = GIB) -> Measured:
    """A trial that went well: two steps of 64 samples with 16 tokens each."""
    step_s = 64 / samples_per_s
    return Measured(
        speed=Speed(step_times_s=(step_s, step_s), step_samples=(64, 64), step_tokens=(1024, 1024)),
        memory=MemoryUse(
            allocated_bytes=total_bytes // 2,
            reserved_bytes=total_bytes // 2,
            outside_bytes=total_bytes - total_bytes // 2,
            total_bytes=total_bytes,
            method="live storage bytes",
        ),
        samples_per_s=samples_per_s,
        samples_per_s_ci95=(samples_per_s * 0.99, samples_per_s * 1.01),
    )


def started(run: str, request: Request | None = None, *, resumed: bool = False) -> RunStarted:
    """An engine took up the run."""
    return RunStarted(
        run=run,
        created_unix_s=time.time(),
        request=request_adapter().dump_python(request or demo_request(), mode="json"),
        versions={"autotune": "0"},
        process=1,
        host="host",
        resumed=resumed,
    )


def opening(run: str, request: Request | None = None) -> list[Event]:
    """Everything up to the first trial."""
    return [
        started(run, request),
        MachineProbed(
            machine=machine_adapter().dump_python(machine(), mode="json"),
            from_store=False,
            memory_limit_bytes=4 * GIB,
            usable_bytes=4 * GIB * 19 // 20,
            limit_source="--memory-limit",
        ),
        WorkloadLoaded(
            facts={
                "model_class": "GPT2LMHeadModel",
                "num_parameters": 1_200_000,
                "num_rows": 812,
                "tokens_max": 128,
            },
            load_s=2.5,
            environment={"OMP_NUM_THREADS": "2"},
        ),
        ParityChecked(
            holds=True, repaired=False, loss_difference=0.0, gradient_difference=0.0, detail="holds"
        ),
        SpacePlanned(
            candidates=(BASELINE.to_json(), BEST.to_json(), TOO_LARGE.to_json()),  # type: ignore[arg-type]
            ruled_out=(
                {"what": "local SGD steps above 1", "reason": "one process", "num_removed": 0},
            ),
            baseline=BASELINE.to_json(),  # type: ignore[arg-type]
            digest="abc",
        ),
    ]


def trial(
    number: int, configuration: Configuration, outcome: Outcome, purpose: Purpose = "search"
) -> list[Event]:
    """One trial from start to end."""
    document: Document = configuration.to_json()  # type: ignore[assignment]
    return [
        TrialStarted(number=number, purpose=purpose, configuration=document, why="it is next"),
        TrialFinished(
            number=number,
            purpose=purpose,
            configuration=document,
            outcome=outcome,
            wall_s=1.5,
            overhead_s=0.3,
        ),
    ]


def searching(run: str, request: Request | None = None) -> list[Event]:
    """A run with a baseline, a better trial and one that ran out of memory."""
    return [
        *opening(run, request),
        *trial(0, BASELINE, measured(25.0), "baseline"),
        *trial(1, BEST, measured(40.0, 2 * GIB)),
        BestChanged(number=1, samples_per_s=40.0, speedup=1.6),
        *trial(
            2,
            TOO_LARGE,
            OutOfMemory(where="host", cause="the limit of 4.00 GiB", needed_at_least_bytes=5 * GIB),
        ),
    ]


def answer(run: str) -> Document:
    """The public document of such a run."""
    best = measured(40.0, 2 * GIB)
    readings: Document = {
        "samples_per_s": best.samples_per_s,
        "samples_per_s_ci95": list(best.samples_per_s_ci95),
        "tokens_per_s": best.speed.tokens_per_s,
        "step_s": best.speed.step_s,
        "memory": {"total_bytes": best.memory.total_bytes},
    }
    return {
        "schema": 1,
        "run": run,
        "recommendation": {
            "configuration": BEST.to_json(),  # type: ignore[dict-item]
            "measured": readings,
            "sample_efficiency": {"value": 1.0, "interval": [1.0, 1.0], "basis": "not needed"},
            "baseline": {"configuration": BASELINE.to_json(), "measured": readings},  # type: ignore[dict-item]
            "speedup": {"value": 1.6, "ci95": [1.5, 1.7]},
            "memory_limit_bytes": 4 * GIB,
            "reasons": ["It is the fastest that fits."],
            "also_consider": ["bf16"],
            "alternatives": [
                {"kind": "least memory", "configuration": BASELINE.to_json(), "measured": readings}  # type: ignore[dict-item]
            ],
            "not_covered": ["longer samples"],
        },
        "trials": [],
        "machine": {},
        "cost": {"wall_s": 12.0, "trials": 3, "trial_s": 4.5},
    }


def foreseen(*untraced: Document) -> MemoryForeseen:
    """What a traced step predicts of the candidates of `opening`: 1, 2 and 9 GiB."""
    needs = {BASELINE: GIB, BEST: 2 * GIB, TOO_LARGE: 9 * GIB}
    return MemoryForeseen(
        candidates=tuple(
            {"configuration": c.to_json(), "predicted": {"total_bytes": need}}  # type: ignore[dict-item]
            for c, need in needs.items()
        ),
        untraced=untraced,
        trace_s=2.5,
        from_store=False,
    )


def ending(run: str, out: Path) -> list[Event]:
    """Confirmation, recommendation, files and a good end."""
    memory = measured(40.0, 2 * GIB).memory
    return [
        SearchEnded(reason="every candidate was tried", num_untried=0),
        Confirmed(
            number=1,
            baseline_number=0,
            speedup=1.6,
            speedup_ci95=(1.5, 1.7),
            num_pairs=6,
            is_tie=False,
            settled=True,
            samples_per_s=40.0,
            samples_per_s_ci95=(39.0, 41.0),
            baseline_samples_per_s=25.0,
            baseline_samples_per_s_ci95=(24.5, 25.5),
            memory=memory,
            baseline_memory=memory,
        ),
        RecommendationMade(document=answer(run)),
        FilesExported(
            directory=str(out),
            files=(
                {"name": "trainer.py", "consumer": "Python", "verified_with": "", "sha256": "0"},
                {"name": "report.md", "consumer": None, "verified_with": "", "sha256": "0"},
            ),
        ),
        RunEnded(reason="recommendation made", exit_code=0),
    ]


def write_run(
    root: Path, name: str, events: Iterable[Event], request: Request | None = None
) -> RunDirectory:
    """A run directory with these events in its journal."""
    run = RunDirectory(root / name)
    run.create()
    requests.save(request or demo_request(), run)
    with Journal(run.journal, run.progress) as journal:
        for event in events:
            journal.append(event)
    return run


def records(events: Iterable[Event]) -> list[Record]:
    """The events as records, a second apart."""
    return [Record(seq=seq, t_s=float(seq), event=event) for seq, event in enumerate(events)]
