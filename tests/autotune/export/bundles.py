"""Bundles of small real jobs: loaded by the loader, with trials that nobody ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from autotune.configuration import (
    NO_CHECKPOINTING,
    Checkpointing,
    Configuration,
    default_baseline,
)
from autotune.events import Document
from autotune.export.bundle import Bundle
from autotune.outcome import Measured, MemoryUse, Outcome, OutOfMemory, Speed
from autotune.view import TrialView
from autotune.workload.facts import WorkloadFacts
from autotune.workload.loaded import LoadedWorkload
from autotune.workload.spec import Columns, WorkloadSpec

GIB = 1024**3

SPEC = WorkloadSpec(
    task="sequence-classification",
    model="/models/minilm",
    dataset="/data/reviews.csv",
    columns=Columns(text="text", label="label"),
    max_length=64,
)
"""A resolved spec for what is rendered but never run."""

FACTS = WorkloadFacts(
    name="minilm",
    task="sequence-classification",
    model_class="BertForSequenceClassification",
    num_parameters=22_713_986,
    num_trainable_parameters=22_713_986,
    parameter_bytes=90_855_944,
    num_rows=1000,
    tokens_median=31,
    tokens_max=64,
    precision="fp32",
    optim="adamw_torch_fused",
    has_batch_norm=False,
    batch_dependent_loss=None,
    notes=("New weights, drawn with the seed: classifier.",),
    versions=(("torch", "2.13.0"),),
)


def measured(samples_per_s: float, total_bytes: int) -> Measured:
    """A trial's readings."""
    step_s = 32 / samples_per_s
    return Measured(
        speed=Speed(step_times_s=(step_s,), step_samples=(32,), step_tokens=(900,)),
        memory=MemoryUse(
            allocated_bytes=total_bytes - GIB // 4,
            reserved_bytes=total_bytes - GIB // 4,
            outside_bytes=GIB // 4,
            total_bytes=total_bytes,
            method="live storage bytes, counted in every operation",
        ),
        samples_per_s=samples_per_s,
        samples_per_s_ci95=(samples_per_s * 0.98, samples_per_s * 1.02),
    )


def trial(number: int, configuration: Configuration, outcome: Outcome | None) -> TrialView:
    """A finished trial; number 0 is the baseline's."""
    return TrialView(
        number=number,
        purpose="baseline" if number == 0 else "search",
        configuration=configuration,
        why="",
        started_s=float(number),
        outcome=outcome,
        wall_s=1.0,
        overhead_s=0.2,
        predicted={"total_bytes": 3 * GIB} if number == 1 else None,
    )


def readings(found: Measured) -> dict[str, JsonValue]:
    """A trial's readings as the public document holds them."""
    return {
        "samples_per_s": found.samples_per_s,
        "samples_per_s_ci95": list(found.samples_per_s_ci95),
        "tokens_per_s": found.speed.tokens_per_s,
        "step_s": found.speed.step_s,
        "memory": {"total_bytes": found.memory.total_bytes},
    }


def plain(configuration: Configuration) -> dict[str, JsonValue]:
    """A configuration as the public document holds it."""
    return configuration.to_json()  # type: ignore[return-value]


def document(
    chosen: Configuration, baseline: Configuration, trials: tuple[TrialView, ...]
) -> Document:
    """The public document of a run that chose `chosen`."""
    best, before = measured(140.0, 2 * GIB), measured(100.0, 3 * GIB)
    return {
        "schema": 1,
        "run": "minilm-20260101-1",
        "recommendation": {
            "configuration": plain(chosen),
            "measured": readings(best),
            "sample_efficiency": {"value": 1.0, "interval": [1.0, 1.0], "basis": "not needed"},
            "baseline": {"configuration": plain(baseline), "measured": readings(before)},
            "speedup": {"value": 1.4, "ci95": [1.37, 1.43]},
            "memory_limit_bytes": 4 * GIB,
            "reasons": ["Fewer, larger micro-batches keep both cores busy."],
            "also_consider": ["untested: bf16, if the processor has instructions for it."],
            "alternatives": [
                {
                    "kind": "closest to the baseline",
                    "configuration": plain(baseline),
                    "measured": readings(before),
                }
            ],
            "not_covered": ["Runs that last longer than a few steps."],
        },
        "trials": [
            {
                "number": t.number,
                "purpose": t.purpose,
                "configuration": plain(t.configuration),
                "outcome": t.state,
                "measured": readings(t.measured) if t.measured else {},
                "predicted": {},
                "cause": None,
            }
            for t in trials
        ],
        "machine": {"devices": [{"kind": "cpu", "name": "Test CPU"}]},
        "cost": {"wall_s": 61.0, "trials": len(trials), "trial_s": 42.0},
    }


def bundle(
    spec: WorkloadSpec = SPEC,
    facts: WorkloadFacts = FACTS,
    *,
    micro_batch_size: int = 4,
    accumulation_steps: int = 2,
    world_size: int = 1,
    checkpointing: Checkpointing = NO_CHECKPOINTING,
    local_sgd_steps: int = 1,
    **changes: object,
) -> Bundle:
    """A bundle that recommends the given configuration."""
    chosen = Configuration(
        micro_batch_size=micro_batch_size,
        accumulation_steps=accumulation_steps,
        world_size=world_size,
        checkpointing=checkpointing,
        local_sgd_steps=local_sgd_steps,
    )
    baseline = default_baseline(chosen.global_batch_size, world_size)
    large = replace(chosen, micro_batch_size=chosen.micro_batch_size * 64)
    trials = (
        trial(0, baseline, measured(100.0, 3 * GIB)),
        trial(1, chosen, measured(139.0, 2 * GIB)),
        trial(
            2,
            large,
            OutOfMemory(
                where="host", cause="over the limit | 4 GiB", needed_at_least_bytes=5 * GIB
            ),
        ),
    )
    made = Bundle(
        run="minilm-20260101-1",
        configuration=chosen,
        baseline=baseline,
        document=document(chosen, baseline, trials),
        workload=spec,
        facts=replace(facts, precision=spec.precision),
        environment={"OMP_NUM_THREADS": "2"},
        trials=trials,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def bundle_of(workload: LoadedWorkload, **changes: object) -> Bundle:
    """A bundle for a workload that was really loaded."""
    assert workload.facts.chosen is not None
    return bundle(workload.facts.chosen, workload.facts, **changes)  # type: ignore[arg-type]


def small_csv(directory: Path, num_rows: int = 40) -> Path:
    """A CSV file with short texts of many lengths and two classes."""
    lines = ["text,label"]
    for i in range(num_rows):
        words = " ".join(f"word{(i * 7 + j) % 23}" for j in range(3 + i % 11))
        lines.append(f"{words},{'good' if i % 3 else 'bad'}")
    path = directory / "rows.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
