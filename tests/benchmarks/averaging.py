"""What one averaging of the parameters costs, fused against Accelerate's stock class.

Both take turns in one job of two ranks, on the same model; a time is that of the slower rank.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, TypeAdapter

from autotune.errors import AutotuneError
from autotune.search.statistics import Ratio, ratio_of_times
from autotune.units import format_bytes
from tests.benchmarks.harness import Context, Reading, Report, Row, Verdict, say

ROUNDS = {"gpt2": 30, "minilm": 12}
TITLES = {"gpt2": "GPT-2 of 0.83M parameters", "minilm": "MiniLM"}
AT_LEAST = {("gpt2", "loopback"): 2.0}
TIME_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the ranks measured."""

    times_s: dict[str, list[float]]
    num_bytes: int
    num_messages: int
    num_tensors: int


def run(context: Context) -> Report:
    """Both models on each link."""
    rows: list[Row] = []
    details: dict[str, JsonValue] = {}
    for name in TITLES:
        say(f"averages {TITLES[name]} over loopback")
        found = _on_loopback(context, name, 3 if context.quick else ROUNDS[name])
        rows += rows_of(name, "loopback", found)
        details[f"{name} over loopback"] = TypeAdapter(Found).dump_python(found, mode="json")
    return Report(
        rows=tuple(rows),
        notes=(
            "Averaging: Accelerate's LocalSGD against FusedLocalSGD, its comparison of steps "
            "included. The ratio is stock time over fused time.",
        ),
        details=details,
    )


def rows_of(name: str, link: str, found: Found) -> tuple[Row, ...]:
    """The ratio, and the fused time that it rests on."""
    fused_s = found.times_s["fused"]
    ratio = ratio_of_times(fused_s, found.times_s["stock"])
    wanted = AT_LEAST.get((name, link))
    where = f"{TITLES[name]}, {link}"
    return (
        Row(
            what=f"{where}: stock averaging over fused",
            reading=Reading.of_ratio(ratio),
            target=f"at least {wanted:g} ×" if wanted else "not slower beyond noise",
            verdict=judge_faster(ratio, wanted or 1.0),
        ),
        Row(
            what=f"{where}: fused averaging",
            reading=Reading.of_samples(fused_s, "s"),
            note=(
                f"{format_bytes(found.num_bytes)} in {found.num_messages} message(s) instead of "
                f"{found.num_tensors}"
            ),
        ),
    )


def judge_faster(ratio: Ratio, at_least: float) -> Verdict:
    """Whether one side is so many times as fast; 1 is reached by whatever is not slower."""
    if at_least == 1.0 and (ratio.high >= 1 or ratio.is_tie):
        return "passed"
    if ratio.low >= at_least:
        return "passed"
    return "failed" if ratio.high < at_least else "unsettled"


def _on_loopback(context: Context, name: str, num_rounds: int) -> Found:
    out = context.directory / f"averaging-{name}-loopback.json"
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    _start([[sys.executable, *launch, *ranks(name, num_rounds, out)]])
    return read(out)


def ranks(name: str, num_rounds: int, out: Path) -> list[str]:
    """What a launcher starts on every rank."""
    return ["-m", "tests.benchmarks.averaging_ranks", name, str(num_rounds), str(out)]


def read(out: Path) -> Found:
    """What the first rank left."""
    return TypeAdapter(Found).validate_python(json.loads(out.read_text(encoding="utf-8")))


def _start(commands: Sequence[Sequence[str]]) -> None:
    """Runs commands side by side to their end.

    Raises:
        AutotuneError: One of them failed, or took too long.
    """
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands
    ]
    try:
        outputs = [process.communicate(timeout=TIME_LIMIT_S)[0] for process in processes]
    except subprocess.TimeoutExpired as error:
        raise AutotuneError(f"The ranks did not end within {TIME_LIMIT_S:g} s.") from error
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, output in zip(processes, outputs, strict=True):
        if process.returncode:
            raise AutotuneError(
                f"A rank ended with {process.returncode}.", "\n".join(output.splitlines()[-12:])
            )
