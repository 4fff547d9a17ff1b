"""Does plain training with the exported scripts run as fast, and need as much, as was promised?

Each script runs in a fresh process, in turn with a trial of the same configuration in a fork of a
warm worker. The n-th timed step of both trains on the same rows, so they are compared step by step.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from pydantic import JsonValue

from autotune.errors import AutotuneError
from autotune.export.running.rerun import measure_script
from autotune.outcome import Speed
from autotune.request import Driver
from autotune.search.evidence.statistics import ratio_of_times, settled
from autotune.trial.pool import WorkerPool
from autotune.trial.protocol import WARMUP_STEPS, MeasureSpeed, SpeedMeasured
from tests.benchmarks.harness import Context, Reading, Report, Row, judge_promise, say
from tests.benchmarks.longest import ROWS_VARIABLE
from tests.benchmarks.tuned import TunedRun, tuned_run, workers

WITHIN = 0.05
SETTLED_AT = 0.03
MIN_PAIRS = 4
MAX_PAIRS = 12
BLOCK_S = 3.0
"""Aimed-at time of the timed steps of one side of a pair."""
MEMORY_WITHIN = 0.02
MEMORY_STEPS = 3
"""The optimizer's state is made in the first; the second and third hold the peak."""
TIME_LIMIT_S = 900.0

SCRIPTS: tuple[tuple[str, Driver], ...] = (
    ("trainer.py", "trainer"),
    ("accelerator.py", "accelerate"),
)


def run(context: Context) -> Report:
    """Compares both scripts with trials, and the Trainer's memory with what was promised."""
    tuned = tuned_run(context)
    rows = []
    details: dict[str, JsonValue] = {"configuration": str(tuned.bundle.configuration)}
    for name, driver in SCRIPTS:
        say(f"runs {name} and trials of {tuned.bundle.configuration} in turn")
        with workers(tuned, context, driver) as pool:
            row, samples = _speed(tuned, context, pool, name, driver)
        rows.append(row)
        details[name] = samples
    say("counts the memory of trainer.py on the longest samples")
    row, totals = _memory(tuned, context)
    return Report(
        rows=(*rows, row),
        notes=(
            f"The recommendation is {tuned.bundle.configuration}, of the engine's run that the "
            "overhead was read from. A ratio above 1 is a script that is slower than its trial.",
        ),
        details={**details, "memory": totals},
    )


def _speed(
    tuned: TunedRun, context: Context, pool: WorkerPool, name: str, driver: Driver
) -> tuple[Row, JsonValue]:
    num_steps = 2 if context.quick else min(12, max(3, round(BLOCK_S / tuned.reading("step_s"))))
    most = 1 if context.quick else MAX_PAIRS
    log = context.directory / f"{name}.log"
    script_s: list[list[float]] = []
    trial_s: list[list[float]] = []

    def run_script() -> None:
        script_s.append(_script(tuned, tuned.out / name, driver, num_steps, log))

    def run_trial() -> None:
        trial_s.append(_trial(tuned, pool, num_steps, log))

    while True:
        for side in (run_script, run_trial)[:: 1 if len(script_s) % 2 == 0 else -1]:
            side()
        # The median of a pair's steps: a step that something else held up says nothing of either.
        of_pairs = [
            statistics.median(s / t for s, t in zip(scripts, trials, strict=True))
            for scripts, trials in zip(script_s, trial_s, strict=True)
        ]
        ratio = ratio_of_times([1.0] * len(of_pairs), of_pairs)
        if len(of_pairs) >= most:
            break
        if len(of_pairs) >= MIN_PAIRS and settled(ratio.interval, SETTLED_AT):
            break
    row = Row(
        what=f"time of a step of {name} over the trial's",
        reading=Reading.of_ratio(ratio),
        target=f"within {WITHIN:.0%} of 1, interval within ±{SETTLED_AT:.0%}",
        verdict=judge_promise(ratio, within=WITHIN, settled_at=SETTLED_AT),
        note=f"{num_steps} timed steps a side and pair, after {WARMUP_STEPS} to warm up",
    )
    return row, {"script_s": script_s, "trial_s": trial_s}  # type: ignore[dict-item]


def _script(
    tuned: TunedRun, script: Path, driver: Driver, num_steps: int, log: Path
) -> list[float]:
    timing = measure_script(
        script,
        num_steps=WARMUP_STEPS + num_steps,
        environment=tuned.bundle.launch_environment,
        driver=driver,
        time_limit_s=TIME_LIMIT_S,
        log=log,
    )
    batch = tuned.bundle.configuration.global_batch_size
    if set(timing.step_rows) != {batch}:
        raise AutotuneError(f"{script.name} trained on {timing.step_rows} rows, not on {batch}.")
    return list(timing.step_times_s[WARMUP_STEPS:])


def _trial(tuned: TunedRun, pool: WorkerPool, num_steps: int, log: Path) -> list[float]:
    reply = pool.ask(
        MeasureSpeed(
            configuration=tuned.bundle.configuration,
            min_steps=num_steps,
            max_steps=num_steps,
            max_seconds=TIME_LIMIT_S,
            precision=0.0,
            with_phases=False,
            repair_loss=tuned.bundle.repair_loss,
        ),
        log=log,
        time_limit_s=TIME_LIMIT_S,
    )
    if not isinstance(reply, SpeedMeasured):
        raise AutotuneError(f"The trial could not be repeated: {getattr(reply, 'cause', reply)}")
    assert isinstance(reply.speed, Speed)
    return list(reply.speed.step_times_s)


def _memory(tuned: TunedRun, context: Context) -> tuple[Row, JsonValue]:
    promised_bytes = tuned.reading("memory.total_bytes")
    environment = {
        **tuned.bundle.launch_environment,
        ROWS_VARIABLE: str(tuned.bundle.configuration.global_batch_size),
    }
    # Live bytes are counted, not timed: they are the same in every process.
    found = measure_script(
        tuned.out / "trainer.py",
        num_steps=MEMORY_STEPS,
        environment=environment,
        driver="trainer",
        time_limit_s=TIME_LIMIT_S,
        log=context.directory / "memory.log",
        hook="tests.benchmarks.longest:feeding",
    ).extra
    total_bytes = _bytes(found, "peak_bytes") + _bytes(found, "level_bytes")
    reading = Reading.of_samples([100 * (total_bytes / promised_bytes - 1)], "%")
    holds = max(abs(reading.low), abs(reading.high)) <= 100 * MEMORY_WITHIN
    row = Row(
        what="memory of trainer.py on the longest samples over the promise",
        reading=reading,
        target=f"within ±{MEMORY_WITHIN:.0%}",
        verdict="passed" if holds else "failed",
    )
    return row, {"promised_bytes": promised_bytes, "plain": found}


def _bytes(extra: dict[str, JsonValue], name: str) -> int:
    value = extra[name]
    assert isinstance(value, int)
    return value
