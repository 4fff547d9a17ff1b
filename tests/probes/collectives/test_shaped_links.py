"""The probe over links whose rate and latency are known, because this machine makes them."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from probes.collectives.probe import PAYLOAD_BYTES, TIME_LIMIT_S
from probes.collectives.said import SAID, Options
from probes.link import Link
from probes.machine import machine_adapter
from tests.testing import links
from tests.testing.links import TwoNodes

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(links.why_not() is not None, reason=links.why_not() or ""),
]
LIMIT_S = 250.0
PAYLOAD_PART = 1448 / 1514
"""The bucket counts whole frames, of which so much is payload."""
PROBE = ["-m", "autotune", "probe", "--processes", "2", "--json"]


def found_by_command(first: links.Ended, second: links.Ended) -> Link:
    """The link that the command on two agents has found."""
    assert first.returncode == 0, first.stderr
    assert second.returncode == 0, second.stderr
    assert second.stdout == ""
    machine = machine_adapter().validate_python(json.loads(first.stdout)["machine"])
    (link,) = machine.links
    assert (link.num_ranks, link.num_nodes, link.backend) == (2, 2, "gloo")
    assert link.interface is not None
    assert (link.interface.name, link.interface.address) == ("wire0", "10.88.0.1")
    assert not [finding for finding in link.findings if finding.is_problem]
    return link


def found_by_ranks(nodes: TwoNodes, place: Path) -> Link:
    """The link that two ranks find, which were started without agents and launcher."""
    out = place / "said"
    out.write_bytes(b"")
    options = Options(
        out=str(out), payload_bytes=PAYLOAD_BYTES, time_limit_s=2 * TIME_LIMIT_S, call_limit_s=30
    )
    command = [sys.executable, "-m", "probes.collectives.rank", json.dumps(asdict(options))]
    variables = [
        {**nodes.environment(node), "GLOO_SOCKET_IFNAME": nodes.interfaces[node]} for node in (0, 1)
    ]
    for ended in nodes.run([command, command], variables, time_limit_s=LIMIT_S):
        assert ended.returncode == 0, ended.stderr
    said = [SAID.validate_json(line) for line in out.read_bytes().splitlines()]
    return Link(
        backend="gloo",
        num_ranks=2,
        exchanges=tuple(one.exchange for one in said if one.exchange is not None),
        pairs=tuple(one.pair for one in said if one.pair is not None),
    )


def rates_mbit(link: Link) -> list[float]:
    """What all-reduces, broadcasts and messages between two ranks move in a second.

    All-gathers are left out: gloo sends each rank's part in one piece both ways at once, and with
    some kernels' congestion control that is slower, whoever measures it.
    """
    largest = link.sizes()[-1]
    assert largest.num_bytes == PAYLOAD_BYTES
    return [
        8e-6 * bytes_per_s
        for bytes_per_s in (
            link.bus_bytes_per_s,
            largest.algorithm_bytes_per_s,
            link.bandwidth_of("broadcast"),
            link.pairs[0].bytes_per_s,
        )
    ]


def assert_rate(link: Link, rate_mbit: float, again: Callable[[], Link]) -> None:
    """A busy machine may hold the ranks up and never hurries them, so a low rate is tried again."""
    meant = [pytest.approx(PAYLOAD_PART * rate_mbit, rel=0.1)] * 4
    if rates_mbit(link) != meant:
        link = again()
    assert rates_mbit(link) == meant


@pytest.mark.timeout(600)
def test_the_rate_of_a_link_is_found_within_a_tenth(tmp_path: Path) -> None:
    with links.shaped(100) as nodes:
        torchrun = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
            *("--nproc-per-node", "1", "--master-addr", nodes.addresses[0]),
            *("--master-port", "29500"),
        ]
        commands = [[*torchrun, "--node-rank", str(node), *PROBE] for node in (0, 1)]
        found = found_by_command(*nodes.run(commands, time_limit_s=LIMIT_S))
        assert_rate(found, 100, lambda: found_by_ranks(nodes, tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_rate_of_a_slower_link_is_found_within_a_tenth(tmp_path: Path) -> None:
    with links.shaped(50) as nodes:
        found = found_by_ranks(nodes, tmp_path)
        assert_rate(found, 50, lambda: found_by_ranks(nodes, tmp_path))


@pytest.mark.skipif(
    links.why_not(with_latency=True) is not None, reason=links.why_not(with_latency=True) or ""
)
def test_latency_is_a_matter_of_round_trips(tmp_path: Path) -> None:
    with links.delayed(100, 0.02) as nodes:
        round_trip_s, link = _round_trip_and_link(nodes, tmp_path)
        if link.latency_s != pytest.approx(2 * round_trip_s, rel=0.25):
            # Other work on the machine holds either up, and not both alike.
            round_trip_s, link = _round_trip_and_link(nodes, tmp_path)
    assert 0.02 <= round_trip_s < 0.04
    # Two phases, in each of which either rank says that it is ready before the other one sends.
    assert link.latency_s == pytest.approx(2 * round_trip_s, rel=0.25)
    # One way is half a round trip: nobody asks before a short message is sent.
    assert link.pairs[0].latency_s == pytest.approx(round_trip_s / 2, rel=0.25)
    assert link.is_extrapolated(4 * 2**20) or link.sizes()[-1].num_bytes == 4 * 2**20


def _round_trip_and_link(nodes: TwoNodes, place: Path) -> tuple[float, Link]:
    """A TCP ping-pong, and what two ranks find right after it."""
    script = [sys.executable, "-c", links.PING_PONG]
    _, client = nodes.run([[*script, str(n), nodes.addresses[0]] for n in (0, 1)])
    return statistics.median(json.loads(client.stdout)), found_by_ranks(nodes, place)
