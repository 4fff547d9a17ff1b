"""The recommendation beside what people do today, on long texts under a memory limit.

Three plain Trainers take turns, each in a fresh process: the recommended configuration; one that
starts with the whole global batch and lets `auto_find_batch_size` cut it, under the same limit;
and the Trainer's default micro-batch size, without a limit.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue, TypeAdapter

from autotune.configuration import Configuration
from autotune.export.child import ask
from autotune.search.evidence.statistics import ratio_of_times
from autotune.search.order import next_candidate
from autotune.units import format_bytes
from tests.benchmarks.grid import Grid, measure_grid
from tests.benchmarks.harness import Context, Reading, Report, Row, say
from tests.benchmarks.jobs import LONG_REVIEWS
from tests.benchmarks.plain_trainer import Attempt, PlainResult, PlainRun
from tests.testing.landscapes import replay

DEFAULT_SIZE = 8
"""`per_device_train_batch_size` of a Trainer that was told nothing; it accumulates nothing."""
NUM_ROUNDS = 3
WARMUP_ROWS, TIMED_ROWS = 12, 24
TIME_LIMIT_S = 900.0
COUNTABLE = {"MALLOC_MMAP_THRESHOLD_": str(256 * 1024)}
"""Blocks of that size go back to the system when they are freed, so that a limit on the process's
data counts what is alive and not what the C library keeps for later: the hidden states of one row
have 384 KiB."""


@dataclass(slots=True, kw_only=True)
class _Side:
    """One way to train, and how it went in each round."""

    name: str
    request: PlainRun
    results: list[PlainResult]

    @property
    def s_per_sample(self) -> list[float]:
        return [s_per_sample(result.attempts[-1]) for result in self.results]

    @property
    def rows_per_update(self) -> list[int]:
        """Of all timed optimizer steps of all rounds."""
        return [
            rows
            for result in self.results
            if result.attempts
            for rows in result.attempts[-1].step_rows[: len(result.attempts[-1].step_times_s)]
        ]

    @property
    def failed(self) -> PlainResult | None:
        """The first round that did not train to the end."""
        return next((r for r in self.results if r.failure is not None), None)


def run(context: Context) -> Report:
    """Takes the limit and the choice from the measured grid, and lets the three take turns."""
    grid = measure_grid(context, LONG_REVIEWS)
    chosen = replay(grid.landscape, next_candidate).chosen.configuration
    whole = Configuration(micro_batch_size=chosen.global_batch_size, accumulation_steps=1)
    default = Configuration(micro_batch_size=DEFAULT_SIZE, accumulation_steps=1)
    common = PlainRun(
        spec=grid.request.spec,
        scratch=str(context.directory / "rivals"),
        configuration=chosen,
        repair_loss=grid.plan.repair_loss,
        limit_bytes=grid.limit_bytes,
        num_rows=2 * chosen.global_batch_size if context.quick else WARMUP_ROWS + TIMED_ROWS,
    )
    Path(common.scratch).mkdir()
    finding = replace(common, configuration=whole, find_batch_size=True, repair_loss=False)
    ours = _Side(name="the recommendation", request=common, results=[])
    auto = _Side(name="auto_find_batch_size", request=finding, results=[])
    plain = _Side(
        name=f"the Trainer's default of {DEFAULT_SIZE}",
        request=replace(common, configuration=default, limit_bytes=None, repair_loss=False),
        results=[],
    )
    sides = [ours, auto, plain]
    for number in range(1 if context.quick else NUM_ROUNDS):
        say(f"round {number + 1} of {chosen} against {auto.name} and {plain.name}")
        first = number % len(sides)
        for side in sides[first:] + sides[:first]:
            side.results.append(_train(context, grid, side.request, COUNTABLE))
    return Report(
        rows=(_fits_row(ours, grid), *_rows(ours, auto), *_rows(ours, plain)),
        notes=(
            f"{grid.job.title}, global batch size {chosen.global_batch_size}. {grid.limit_text} "
            f"RLIMIT_DATA lets a process add what that limit leaves beyond its level after imports "
            f"and its model; all sides run with {_as_shell(COUNTABLE)}, so that it counts what is "
            "alive. A ratio is the time of a sample over that of the recommendation.",
        ),
        details={
            "configuration": str(chosen),
            "limit_bytes": grid.limit_bytes,
            **{side.name: _json(side.results) for side in sides},
        },
    )


def s_per_sample(attempt: Attempt) -> float:
    """Time of a sample over the steps after those that warm up."""
    done = timed_s = timed_rows = 0.0
    for rows, step_s in zip(attempt.step_rows, attempt.step_times_s, strict=False):
        if done >= WARMUP_ROWS:
            timed_rows += rows
            timed_s += step_s
        done += rows
    if not timed_rows:
        # A smoke run trains on too few rows to warm up.
        return sum(attempt.step_times_s) / sum(attempt.step_rows)
    return timed_s / timed_rows


def _train(
    context: Context, grid: Grid, request: PlainRun, environment: dict[str, str]
) -> PlainResult:
    document: JsonValue = json.loads(TypeAdapter(PlainRun).dump_json(request))
    answer = ask(
        "tests.benchmarks.plain_trainer",
        document,
        environment={**grid.environment, **environment},
        log=context.directory / "rivals.log",
        time_limit_s=TIME_LIMIT_S,
    )
    return TypeAdapter(PlainResult).validate_python(answer)


def _fits_row(ours: _Side, grid: Grid) -> Row:
    limit = format_bytes(grid.limit_bytes or 0)
    return Row(
        what="rounds in which the recommendation trained to the end under its limit",
        reading=Reading.of_samples([sum(r.failure is None for r in ours.results)], "rounds"),
        target=f"all {len(ours.results)} within {limit}",
        verdict="passed" if ours.failed is None else "failed",
        note=_story(ours.failed) if ours.failed is not None else "",
    )


def _rows(ours: _Side, other: _Side) -> tuple[Row, ...]:
    what = f"time of a sample with {other.name} over the recommendation's"
    for side in (other, ours):
        if side.failed is not None:
            return (Row(what=what, note=f"{side.name} {_story(side.failed)}"),)
    updates = Reading.of_samples([float(n) for n in other.rows_per_update], "rows")
    wanted = ours.request.configuration.global_batch_size
    rows = [
        Row(
            what=what,
            reading=Reading.of_ratio(ratio_of_times(ours.s_per_sample, other.s_per_sample)),
        ),
        Row(
            what=f"rows of an optimizer step with {other.name}",
            reading=updates,
            note=f"the recommendation trains on {_counts(ours)}, as it should on {wanted}",
        ),
    ]
    if other.request.find_batch_size:
        restarts_s = Reading.of_samples([r.restarts_s for r in other.results], "s")
        rows.append(
            Row(
                what=f"time that {other.name} lost before its last start",
                reading=restarts_s,
                note=f"it {_story(other.results[-1])}",
            )
        )
    return tuple(rows)


def _counts(side: _Side) -> str:
    low, high = min(side.rows_per_update), max(side.rows_per_update)
    return f"{low} rows each time" if low == high else f"{low} to {high} rows"


def _story(result: PlainResult) -> str:
    """What became of a run that looks for its batch size."""
    sizes = " → ".join(str(attempt.micro_batch_size) for attempt in result.attempts)
    if result.failure is not None:
        return f"tried {sizes} rows and ended with {result.failure}"
    rows = statistics.median(result.attempts[-1].step_rows)
    return f"tried {sizes} rows, and then trained on {rows:g} rows an optimizer step"


def _as_shell(environment: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in environment.items())


def _json(results: list[PlainResult]) -> JsonValue:
    found: JsonValue = TypeAdapter(list[PlainResult]).dump_python(results, mode="json")
    return found
