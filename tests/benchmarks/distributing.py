"""Whether the advice on processes and local SGD is the best there is, link by link.

On every link all candidates are measured in turn: one process, plain data parallel, local SGD at
several numbers of steps. What the tool would recommend, by compute and averaging times alone, is
held against the best of them, under one stated table of sample efficiencies.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pydantic import JsonValue, TypeAdapter

from autotune.configuration import Configuration
from autotune.cost.communication import choose_local_sgd_steps, step_s
from autotune.cost.learning import LocalSGDModel
from autotune.errors import AutotuneError
from autotune.outcome import Exchange
from autotune.search.evidence.statistics import ratio_of_times
from tests.benchmarks.distributing_node import DDP, LOCAL, ONE
from tests.benchmarks.harness import Context, Reading, Report, Row, Verdict, say
from tests.testing import links

NUM_ROUNDS = 5
PREDICTED_AT = (2, 4, 16)
MEDIAN_PERCENT, WORST_PERCENT = 5.0, 20.0
MOST_TIME = 1.5
TABLE = LocalSGDModel(
    first=0.9, first_interval=(0.9, 0.9), kappa=0.0033, kappa_interval=(0.0033, 0.0033)
)
"""The stated sample efficiencies: 0.9 / (1 + 0.0033 (H - 1)), and 1 without local SGD."""
TIME_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one link showed."""

    step_s: Mapping[str, list[float]]
    trial_s: Mapping[str, list[float]]
    exchanges: tuple[Exchange, ...]


def run(context: Context) -> Report:
    """All links."""
    rows: list[Row] = []
    details: dict[str, JsonValue] = {}
    for name in ("loopback", "100 Mbit/s", "100 Mbit/s, 10 ms round trip"):
        why_not = None if name == "loopback" else links.why_not(with_latency="10 ms" in name)
        if why_not is not None:
            rows.append(Row(what=name, note=f"not measured: {why_not}"))
            continue
        say(f"trains every way over {name}")
        found = _measured(context, name)
        rows += [*_predictions(name, found), _decision(name, found)]
        if name == "loopback":
            rows.append(_time(found))
        details[name] = TypeAdapter(Found).dump_python(found, mode="json")
    return Report(
        rows=tuple(rows),
        notes=(
            "Samples per second are weighed with 0.9 / (1 + 0.0033 (H - 1)) at H local steps, and "
            "with 1 otherwise. 16 samples a step everywhere; the small language model of the demo.",
        ),
        details=details,
    )


def _measured(context: Context, link: str) -> Found:
    out = context.directory / f"distributing-{link.partition(' ')[0]}.json"
    rounds = "1" if context.quick else str(NUM_ROUNDS)
    command = [sys.executable, "-m", "tests.benchmarks.distributing_node", str(out), rounds]
    if link == "loopback":
        subprocess.run(command, check=True, timeout=TIME_LIMIT_S, stdout=subprocess.DEVNULL)
    else:
        with _link(link) as nodes:
            ended = nodes.run(
                [command, command],
                [nodes.environment(0), nodes.environment(1)],
                time_limit_s=TIME_LIMIT_S,
            )
        if any(one.returncode for one in ended):
            raise AutotuneError(f"A node failed: {ended[0].stderr[-500:]} {ended[1].stderr[-500:]}")
    return TypeAdapter(Found).validate_python(json.loads(out.read_text()))


@contextmanager
def _link(name: str) -> Iterator[links.TwoNodes]:
    made = links.delayed(100, 0.010) if "10 ms" in name else links.shaped(100)
    with made as nodes:
        yield nodes


def _predictions(link: str, found: Found) -> list[Row]:
    """Steps a second at a number of local steps, by the same run's compute and averaging."""
    exchange = replace(
        found.exchanges[0],
        compute_s=statistics.median(e.compute_s for e in found.exchanges),
        averaging_s=statistics.median(e.averaging_s for e in found.exchanges),
    )
    errors = []
    for configuration in LOCAL:
        steps = configuration.local_sgd_steps
        if steps in PREDICTED_AT:
            measured_s = statistics.median(found.step_s[str(configuration)])
            errors.append(100 * (measured_s / step_s(exchange, steps) - 1))
    sizes = [abs(error) for error in errors]
    median, worst = statistics.median(sizes), max(sizes)
    verdict: Verdict = "passed" if median <= MEDIAN_PERCENT and worst <= WORST_PERCENT else "failed"
    return [
        Row(
            what=f"{link}: error of the predicted step, size of it",
            reading=Reading.of_samples(sizes, "%"),
            target=f"median at most {MEDIAN_PERCENT:g} %, worst at most {WORST_PERCENT:g} %",
            verdict=verdict,
            note=f"at {', '.join(map(str, PREDICTED_AT))} local steps, by compute and averaging "
            "of the same run, medians of its rounds",
        )
    ]


def _decision(link: str, found: Found) -> Row:
    """The recommended way against the best of all that were measured."""
    weights = {
        str(c): TABLE.efficiency(c.local_sgd_steps).value if c.local_sgd_steps > 1 else 1.0
        for c in (*ONE, *DDP, *LOCAL)
    }
    useful = {c: [t / weights[c] for t in times] for c, times in found.step_s.items()}
    best = min(useful, key=lambda c: statistics.median(useful[c]))
    chosen = _recommended(found, useful)
    ratio = ratio_of_times(useful[best], useful[chosen])
    verdict: Verdict = "passed" if chosen == best or ratio.low <= 1 else "failed"
    return Row(
        what=f"{link}: time of useful samples, recommended over the best of all measured",
        reading=Reading.of_ratio(ratio),
        target="1, or not apart from it beyond noise",
        verdict=verdict,
        note=f"recommended {chosen}, best {best}",
    )


def _recommended(found: Found, useful: Mapping[str, list[float]]) -> str:
    """Best of one process and of data parallel, and the local SGD that is predicted to be best."""
    exchange = _typical(found.exchanges)
    choice = choose_local_sgd_steps(
        exchange,
        TABLE,
        samples_per_step=16,
        step_counts=[c.local_sgd_steps for c in LOCAL],
    )
    tried: list[Configuration] = [*ONE, *DDP]
    tried += [c for c in LOCAL if c.local_sgd_steps == choice.local_sgd_steps]
    return min((str(c) for c in tried), key=lambda c: statistics.median(useful[c]))


def _typical(exchanges: tuple[Exchange, ...]) -> Exchange:
    ordered = sorted(exchanges, key=lambda e: e.compute_s)
    return ordered[len(ordered) // 2]


def _time(found: Found) -> Row:
    """What a trial takes on two ranks, against one; both train on as many samples."""
    num = min(len(found.trial_s["1"]), len(found.trial_s["2"]))
    ratio = ratio_of_times(found.trial_s["1"][:num], found.trial_s["2"][:num])
    return Row(
        what="loopback: time of a trial on two ranks over that on one, start-up apart",
        reading=Reading.of_ratio(ratio),
        target=f"at most {MOST_TIME:g} ×",
        verdict="passed" if ratio.value <= MOST_TIME else "failed",
    )
