"""Does the interconnect probe find what a plain all-reduce script finds on the same link?

Probe and script take turns on the loopback and on links between two network namespaces: two ranks,
the same message sizes. A ratio above 1 is a probe that says less time than the script takes.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from autotune.errors import AutotuneError
from autotune.search.evidence.statistics import Ratio, ratio_of_times
from probes.collectives.probe import measure
from probes.known import known_machine
from probes.link import Link
from probes.machine import machine_adapter
from probes.ranks.launch import Ranks
from tests.benchmarks.harness import Context, Reading, Report, Row, judge_promise, say
from tests.testing import links
from tests.testing.links import TwoNodes

WITHIN = 0.1
SETTLED_AT = 0.1
NUM_ROUNDS = 5
SIZES_BYTES = (1024, 65536, 4 * 2**20)
ROUND_TRIP_S = 0.01
LIMIT_S = 250.0

PLAIN_SCRIPT = """
import json, os, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
found = []
for num_bytes in json.loads(sys.argv[1]):
    tensor = torch.ones(num_bytes // 4)
    num_calls = 4 if num_bytes > 1_000_000 else 30
    for _ in range(3):
        dist.all_reduce(tensor)
    dist.barrier()
    start_s = time.perf_counter()
    for _ in range(num_calls):
        dist.all_reduce(tensor)
    seconds = torch.tensor((time.perf_counter() - start_s) / num_calls, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    found.append(seconds.item())
if dist.get_rank() == 0:
    print(json.dumps(found))
dist.barrier()
sys.stdout.flush()
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A link, and how both sides are run on it."""

    name: str
    nodes: TwoNodes | None
    """None for the loopback."""

    def probe(self) -> Link:
        """What the probe finds."""
        if self.nodes is None:
            return measure(Ranks(num_processes=2), known_machine())
        command = [sys.executable, "-m", "autotune", "probe", "--processes", "2", "--json"]
        out = self.run([command, command], [self.nodes.environment(node) for node in (0, 1)])
        machine = machine_adapter().validate_python(json.loads(out)["machine"])
        return machine.links[0]

    def script(self) -> list[float]:
        """Seconds of an all-reduce of each size, as the plain script finds them."""
        command = [sys.executable, "-W", "ignore", "-c", PLAIN_SCRIPT, json.dumps(SIZES_BYTES)]
        variables = [
            {
                **links.node_environment(node, self.addresses[0], 29600),
                "GLOO_SOCKET_IFNAME": self.interfaces[node],
                "OMP_NUM_THREADS": "1",
            }
            for node in (0, 1)
        ]
        found: list[float] = json.loads(self.run([command, command], variables))
        return found

    def run(self, commands: Sequence[Sequence[str]], variables: Sequence[dict[str, str]]) -> str:
        """Runs a command for each node and returns what the first that says anything says."""
        started = [
            links.start(
                command if self.nodes is None else self.nodes.command(node, command),
                variables[node],
            )
            for node, command in enumerate(commands)
        ]
        ended = links.await_all(started, time_limit_s=LIMIT_S)
        for one in ended:
            if one.returncode:
                last = (one.stderr.strip().splitlines() or ["nothing was said"])[-1]
                raise AutotuneError(f"{self.name}: a command ended with {one.returncode}: {last}")
        return next(one.stdout for one in ended if one.stdout)

    @property
    def addresses(self) -> tuple[str, str]:
        """Of both nodes."""
        return ("127.0.0.1", "127.0.0.1") if self.nodes is None else self.nodes.addresses

    @property
    def interfaces(self) -> tuple[str, str]:
        """Of both nodes."""
        return ("lo", "lo") if self.nodes is None else self.nodes.interfaces


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    yield None


PLACES: tuple[tuple[str, Callable[[], contextlib.AbstractContextManager[TwoNodes | None]]], ...] = (
    ("loopback", _loopback),
    ("1 Gbit/s", lambda: links.shaped(1000)),
    ("100 Mbit/s", lambda: links.shaped(100)),
    ("100 Mbit/s, 10 ms", lambda: links.delayed(100, ROUND_TRIP_S)),
)


def run(context: Context) -> Report:
    """Compares probe and script on every link that this machine can make."""
    rows: list[Row] = []
    details: dict[str, JsonValue] = {}
    for name, make in PLACES:
        why_not = None if make is _loopback else links.why_not(with_latency="ms" in name)
        if why_not is not None:
            rows.append(Row(what=f"{name}: not tried", note=f"{why_not}."))
            continue
        say(f"probes the link: {name}")
        with make() as nodes:
            found, samples = _compare(
                Place(name, nodes), num_rounds=1 if context.quick else NUM_ROUNDS
            )
        rows += found
        details[name] = samples
    return Report(rows=tuple(rows), details=details)


def _compare(place: Place, *, num_rounds: int) -> tuple[list[Row], JsonValue]:
    probed: list[list[float]] = []
    plain: list[list[float]] = []
    latencies_s: list[float] = []
    for _ in range(num_rounds):
        link = place.probe()
        probed.append([link.all_reduce_s(num_bytes) for num_bytes in SIZES_BYTES])
        latencies_s.append(link.latency_s)
        plain.append(place.script())
    rows = []
    for number, num_bytes in enumerate(SIZES_BYTES):
        ratio = ratio_of_times([one[number] for one in probed], [one[number] for one in plain])
        rows.append(
            _row(f"{place.name}: script over probe, all-reduce of {num_bytes} bytes", ratio)
        )
    if place.nodes is not None and "ms" in place.name:
        rows.append(_round_trips(place, latencies_s))
    return rows, {
        "probe_s": [[*one] for one in probed],
        "script_s": [[*one] for one in plain],
    }


def _row(what: str, ratio: Ratio) -> Row:
    return Row(
        what=what,
        reading=Reading.of_ratio(ratio),
        target=f"within {100 * WITHIN:.0f} % of 1",
        verdict=judge_promise(ratio, within=WITHIN, settled_at=SETTLED_AT),
    )


def _round_trips(place: Place, latencies_s: Sequence[float]) -> Row:
    script = [sys.executable, "-c", links.PING_PONG]
    commands = [[*script, str(node), place.addresses[0]] for node in (0, 1)]
    times_s: list[float] = json.loads(place.run(commands, [{}, {}]))
    round_trip_s = sorted(times_s)[len(times_s) // 2]
    return Row(
        what=f"{place.name}: round trips of the smallest all-reduce",
        reading=Reading.of_samples([s / round_trip_s for s in latencies_s], "×"),
        note=f"a TCP ping-pong takes {1e3 * round_trip_s:.1f} ms",
    )
