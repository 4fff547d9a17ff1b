"""What all benchmarks share: readings with their spread, verdicts, the table, the JSON file."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import JsonValue

from autotune.errors import AutotuneError
from autotune.run_directory import write_atomically, write_json
from autotune.search.evidence.statistics import Ratio, settled
from autotune.starting import library_versions
from autotune.units import format_bytes
from probes.known import known_machine

SCHEMA = 1
Verdict: TypeAlias = Literal["passed", "failed", "unsettled"]
Unit: TypeAlias = Literal["s", "×", "%", "bytes", "samples/s", "trials", "rounds", "rows", "starts"]
BUSY_LOAD = 0.5
"""Processes per core that waited or ran before a benchmark began, above which it says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A measured figure and how far its samples lie apart."""

    value: float
    low: float
    high: float
    num: int
    """Samples behind it."""
    unit: Unit
    spread: Literal["95 %", "range"]
    """What `low` and `high` are: a 95 % interval, or the smallest and the largest sample."""

    @classmethod
    def of_samples(cls, samples: Sequence[float], unit: Unit) -> Reading:
        """The median and the range of some samples."""
        return cls(
            value=statistics.median(samples),
            low=min(samples),
            high=max(samples),
            num=len(samples),
            unit=unit,
            spread="range",
        )

    @classmethod
    def of_ratio(cls, ratio: Ratio) -> Reading:
        """A ratio of pairs with its interval."""
        return cls(
            value=ratio.value,
            low=ratio.low,
            high=ratio.high,
            num=ratio.num_pairs,
            unit="×",
            spread="95 %",
        )

    def __str__(self) -> str:
        return formatted(self.value, self.unit)

    @property
    def spread_text(self) -> str:
        """Both ends, in words."""
        if self.num == 1:
            return "one sample"
        return (
            f"{self.spread} {formatted(self.low, self.unit)} to {formatted(self.high, self.unit)}"
        )


def formatted(value: float, unit: Unit) -> str:
    """A figure with its unit."""
    match unit:
        case "bytes":
            return format_bytes(value)
        case "×":
            return f"{value:.3f} ×"
        case "%":
            return f"{value:+.1f} %"
        case "s" | "samples/s":
            return f"{value:.3g} {unit}"
        case _:
            return f"{value:g} {unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str
    reading: Reading | None = None
    """None where nothing could be measured; the note says why."""
    target: str | None = None
    verdict: Verdict | None = None
    """None where there is nothing to reach."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one benchmark found."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    details: dict[str, JsonValue] = field(default_factory=dict)
    """Every sample, for whoever wants to look again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Context:
    """How a set of benchmarks is run."""

    directory: Path
    """Scratch space that is gone afterwards."""
    quick: bool
    """Tiny budgets, which show that everything works and nothing else."""
    record: bool
    """Store measured grids as landscapes."""


def say(text: str) -> None:
    """Tells whoever waits what is going on."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def judge_promise(ratio: Ratio, *, within: float, settled_at: float) -> Verdict:
    """Whether a ratio is 1 for all that is promised.

    Args:
        ratio: With its 95 % interval.
        within: How far the ratio may be from 1.
        settled_at: Half width above which the interval says nothing either way.
    """
    if not settled(ratio.interval, settled_at):
        return "unsettled"
    return "passed" if abs(ratio.value - 1) <= within else "failed"


def judge_at_most(reading: Reading, *, value: float, high: float) -> Verdict:
    """Whether a figure and the upper end of its interval stay below what is allowed.

    An interval that is wider than the room between the two, and does not lie above the first, says
    nothing either way.
    """
    if reading.value <= value and reading.high <= high:
        return "passed"
    is_narrow = (reading.high - reading.low) / 2 <= high - value
    return "failed" if is_narrow or reading.low > value else "unsettled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A benchmark that was run."""

    name: str
    report: Report
    wall_s: float
    load_before: float
    """Processes per core that ran or waited in the minute before it."""


def run(name: str, benchmark: Callable[[Context], Report], context: Context) -> Result:
    """Runs a benchmark; what goes wrong in it becomes its one row."""
    load_before = load_per_core()
    say(f"{name} …")
    start_s = time.perf_counter()
    try:
        report = benchmark(context)
    except AutotuneError as error:
        report = Report(rows=(Row(what="could not be run", verdict="failed", note=str(error)),))
    else:
        if context.quick:
            report = replace(report, rows=tuple(replace(r, verdict=None) for r in report.rows))
    wall_s = time.perf_counter() - start_s
    say(f"{name} took {wall_s:.0f} s")
    return Result(name=name, report=report, wall_s=wall_s, load_before=load_before)


def load_per_core() -> float:
    """Processes per core that ran or waited in the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def machine_text() -> str:
    """Machine and versions in words."""
    host = known_machine().host
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    return f"{host.processor}, {host.num_cores:g} cores; {platform.platform()}; {versions}"


def markdown(results: Sequence[Result], *, machine: str, quick: bool) -> str:
    """The table, and below it what the figures need to be understood."""
    lines = [f"{machine}.", ""]
    if quick:
        lines += [
            "**Smoke run** with tiny budgets: it shows that the benchmarks work. Its figures say "
            "nothing about what is promised, and are not judged.",
            "",
        ]
    table = [("benchmark", "what", "result", "spread", "n", "to reach", "verdict")]
    notes: list[str] = []
    for result in results:
        for row in result.report.rows:
            reading = row.reading
            table.append(
                (
                    result.name,
                    row.what,
                    str(reading) if reading is not None else "–",
                    reading.spread_text if reading is not None else "–",
                    str(reading.num) if reading is not None else "–",
                    row.target or "–",
                    row.verdict or "–",
                )
            )
            if row.note:
                notes.append(f"{result.name}, {row.what}: {row.note}")
        notes += [f"{result.name}: {note}" for note in result.report.notes]
        if result.load_before > BUSY_LOAD:
            notes.append(
                f"{result.name}: the machine was busy before it began, with "
                f"{result.load_before:.1f} processes per core."
            )
    lines += [f"| {' | '.join(_cell(text) for text in row)} |" for row in table]
    lines.insert(-len(table) + 1, f"|{'---|' * len(table[0])}")
    total_s = sum(result.wall_s for result in results)
    times = ", ".join(f"{result.name} {result.wall_s / 60:.1f} min" for result in results)
    lines += ["", *(f"- {note}" for note in notes)]
    lines += ["", f"It took {total_s / 60:.1f} min: {times}.", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def write(directory: Path, results: Sequence[Result], *, quick: bool) -> str:
    """Writes `benchmarks.md` and `benchmarks.json`, and returns the text of the first."""
    machine = machine_text()
    text = markdown(results, machine=machine, quick=quick)
    document: dict[str, JsonValue] = {
        "schema": SCHEMA,
        "quick": quick,
        "created_unix_s": time.time(),
        "machine": machine,
        "benchmarks": [asdict(result) for result in results],
    }
    write_atomically(directory / "benchmarks.md", text)
    write_json(directory / "benchmarks.json", document)
    return text
