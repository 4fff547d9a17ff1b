"""Runs that ended in different ways, as screen 5 must tell them."""

from __future__ import annotations

from pathlib import Path

from autotune.configuration import Configuration
from autotune.events import (
    Confirmed,
    Document,
    Event,
    FilesExported,
    RecommendationMade,
    RegionClosed,
    RunEnded,
    SearchEnded,
)
from autotune.outcome import OutOfMemory
from autotune.run_directory import RunDirectory
from tests.testing import runs
from tests.tui import stories

GIB = runs.GIB
SCRIPT = 'print("train")\n'
CONSUMERS = {
    "recommendation.json": "autotune.load",
    "training_arguments.json": "HfArgumentParser",
    "train.args": "HfArgumentParser",
    "accelerate.yaml": "accelerate launch",
    "report.md": "",
    "trainer.py": "Python",
}


def readings(samples_per_s: float, total_bytes: int) -> Document:
    return {
        "samples_per_s": samples_per_s,
        "samples_per_s_ci95": [samples_per_s * 0.98, samples_per_s * 1.02],
        "tokens_per_s": samples_per_s * 16,
        "step_s": 64 / samples_per_s,
        "memory": {"total_bytes": total_bytes},
    }


def document(
    chosen: Configuration = stories.TRIALS[2][0], *, is_tie: bool = False, efficiency: float = 1.0
) -> Document:
    """The public document of a run that found 32×2 for somebody with 8×8."""
    baseline = stories.TRIALS[0][0]
    return {
        "schema": 1,
        "run": stories.NAME,
        "recommendation": {
            "configuration": chosen.to_json(),  # type: ignore[dict-item]
            "measured": readings(41.8, 3 * GIB + GIB // 2),
            "sample_efficiency": {
                "value": efficiency,
                "interval": [efficiency * 0.9, 1.0],
                "basis": "not needed" if efficiency == 1.0 else "assumed",
            },
            "baseline": {
                "configuration": baseline.to_json(),  # type: ignore[dict-item]
                "measured": readings(25.0, GIB),
            },
            "speedup": {"value": 1.01, "ci95": [0.98, 1.03]}
            if is_tie
            else {"value": 1.67, "ci95": [1.62, 1.73]},
            "memory_limit_bytes": 4 * GIB,
            "reasons": [
                "32×2 is the fastest of 5 measured configurations that fit.",
                "Larger micro-batches did not fit: 64×1 ran out of memory.",
            ],
            "also_consider": ["untested: torch.compile (torch_compile=True), worth its warm-up"],
            "alternatives": [
                {
                    "kind": "least memory",
                    "configuration": stories.TRIALS[1][0].to_json(),  # type: ignore[dict-item]
                    "measured": readings(40.2, 2 * GIB),
                    "reason": "it needs the least memory of those that are not much slower",
                },
                {
                    "kind": "closest to the baseline",
                    "configuration": baseline.to_json(),  # type: ignore[dict-item]
                    "measured": readings(25.0, GIB),
                    "reason": "it changes least",
                },
            ],
            "not_covered": ["Evaluation, prediction and saving were not run."],
        },
        "trials": [],
        "machine": {},
        "cost": {"wall_s": 60.0, "trials": 9, "trial_s": 40.0},
    }


def confirmed(*, is_tie: bool = False) -> Confirmed:
    memory = runs.measured(40.0, 3 * GIB + GIB // 2).memory
    return Confirmed(
        number=2,
        baseline_number=0,
        speedup=1.01 if is_tie else 1.67,
        speedup_ci95=(0.98, 1.03) if is_tie else (1.62, 1.73),
        num_pairs=6,
        is_tie=is_tie,
        settled=True,
        samples_per_s=41.8,
        samples_per_s_ci95=(41.0, 42.6),
        baseline_samples_per_s=25.0,
        baseline_samples_per_s_ci95=(24.5, 25.5),
        memory=memory,
        baseline_memory=runs.measured(25.0, GIB).memory,
    )


def finished(root: Path, found: Document | None = None) -> RunDirectory:
    """A run with an answer, whose files are there."""
    # The place of the files stands in a picture, which must not depend on this machine.
    out = Path("out")
    events: list[Event] = [
        *stories.searching(),
        SearchEnded(reason="every candidate was tried", num_untried=0),
        confirmed(),
        RecommendationMade(document=found or document()),
        FilesExported(
            directory=str(out),
            files=tuple(
                {"name": name, "consumer": consumer, "verified_with": "", "sha256": "0"}
                for name, consumer in CONSUMERS.items()
            ),
        ),
        RunEnded(reason="recommendation made", exit_code=0),
    ]
    run = stories.write(root, events)
    (root / out).mkdir(exist_ok=True)
    for name in CONSUMERS:
        text = SCRIPT if name.endswith(".py") else f"# {name}\n"
        (root / out / name).write_text(text)
    return run


def infeasible() -> list[Event]:
    """Nothing fits: two trials ran out of memory, and one failed."""
    limit = 1 * GIB
    outcomes = [
        OutOfMemory(
            where="host",
            cause="the limit of 1.00 GiB was reached in the forward pass",
            needed_at_least_bytes=need,
            limit_bytes=limit,
        )
        for need in (5 * GIB // 2, 3 * GIB // 2)
    ]
    events: list[Event] = stories.opening()
    events += runs.trial(0, stories.configuration(8, 8), outcomes[0], "baseline")
    events += runs.trial(1, stories.configuration(1, 64, 1), outcomes[1])
    events += runs.trial(2, stories.TRIALS[6][0], stories.TRIALS[6][1])
    events.append(
        RegionClosed(
            what="micro-batch 8 and more",
            reason="trial 0 ran out of memory",
            num_removed=9,
            trial=0,
        )
    )
    events.append(
        RunEnded(
            reason="nothing feasible",
            exit_code=4,
            cause="None of 12 configurations works: 2 ran out of memory.",
            remedy="The nearest was 1×64, which needs more than 1.50 GiB: raise --memory-limit.",
        )
    )
    return events
