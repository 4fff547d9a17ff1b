"""What one averaging of the parameters costs, fused against Accelerate's stock class.

Both take turns in one job of two ranks, on the same model; a time is that of the slower rank.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, TypeAdapter

from autotune.errors import AutotuneError
from autotune.search.evidence.statistics import Ratio, ratio_of_times
from autotune.units import format_bytes
from tests.benchmarks.harness import Context, Reading, Report, Row, Verdict, say
from tests.testing import links

LOOPBACK, SLOW = "loopback", "100 Mbit/s, 10 ms round trip"
TITLES = {"gpt2": "GPT-2 of 0.83M parameters", "minilm": "MiniLM"}
ROUNDS = {
    ("gpt2", LOOPBACK): 40,
    ("gpt2", SLOW): 12,
    ("minilm", LOOPBACK): 16,
    ("minilm", SLOW): 6,
}
AT_LEAST = {("gpt2", LOOPBACK): 2.0, ("gpt2", SLOW): 4.0}
"""How many times as fast; elsewhere not slower."""
PORT = 29700
TIME_LIMIT_S = 900.0


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
    for link in (LOOPBACK, SLOW):
        why_not = None if link == LOOPBACK else links.why_not(with_latency=True)
        if why_not is not None:
            rows.append(Row(what=link, note=f"not measured: {why_not}"))
            continue
        for name in TITLES:
            say(f"averages {TITLES[name]}: {link}")
            found = _measured(context, name, link)
            rows += rows_of(name, link, found)
            details[f"{name}, {link}"] = TypeAdapter(Found).dump_python(found, mode="json")
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
            verdict=judge_faster(ratio, wanted),
        ),
        Row(
            what=f"{where}: fused averaging",
            reading=Reading.of_samples(fused_s, "s"),
            note=(
                f"{format_bytes(found.num_bytes)} in {found.num_messages} message(s), stock in "
                f"{found.num_tensors}"
            ),
        ),
    )


def judge_faster(ratio: Ratio, at_least: float | None) -> Verdict:
    """Whether one side is so many times as fast, or, for None, not slower beyond noise."""
    if at_least is None:
        return "failed" if ratio.high < 1 and ratio.is_slower else "passed"
    if ratio.low >= at_least:
        return "passed"
    return "failed" if ratio.high < at_least else "unsettled"


def _measured(context: Context, name: str, link: str) -> Found:
    out = context.directory / f"averaging-{name}.json"
    num_rounds = 2 if context.quick else ROUNDS[(name, link)]
    command = [
        *(sys.executable, "-m", "tests.benchmarks.averaging_ranks"),
        *(name, str(num_rounds), str(out)),
    ]
    commands: list[Sequence[str]] = [command, command]
    if link == LOOPBACK:
        variables = [_variables(links.node_environment(n, "127.0.0.1", PORT), "lo") for n in (0, 1)]
        ended = links.await_all(
            [links.start(command, one) for one in variables], time_limit_s=TIME_LIMIT_S
        )
    else:
        with links.delayed(100, 0.010) as nodes:
            variables = [
                _variables(nodes.environment(n, PORT), nodes.interfaces[n]) for n in (0, 1)
            ]
            ended = nodes.run(commands, variables, time_limit_s=TIME_LIMIT_S)
    for one in ended:
        if one.returncode:
            said = "\n".join(one.stderr.splitlines()[-12:])
            raise AutotuneError(f"A rank ended with {one.returncode}.", said)
    return TypeAdapter(Found).validate_python(json.loads(Path(out).read_text(encoding="utf-8")))


def _variables(launched: Mapping[str, str], interface: str) -> dict[str, str]:
    return {**launched, "GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"}
