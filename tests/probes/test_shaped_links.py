"""The probe over links whose rate and latency are known, because this machine makes them.

Rates here are what the bucket lets through, headers counted: of 1514 bytes of a full frame 1448 are
payload, so that 95.6 % of the rate is the most that messages can reach.
"""

from __future__ import annotations

import json
import statistics
import sys

import pytest

from probes.link import Link
from probes.machine import machine_adapter
from tests.testing import links
from tests.testing.links import TwoNodes

pytestmark = pytest.mark.skipif(links.why_not() is not None, reason=links.why_not() or "")
LIMIT_S = 150.0
PROBE = [sys.executable, "-m", "autotune", "probe", "--processes", "2", "--json"]

PING_PONG = """
import socket, statistics, sys, time
is_server, address = sys.argv[1] == "0", sys.argv[2]
if is_server:
    with socket.create_server((address, 29999)) as server:
        peer, _ = server.accept()
else:
    for _ in range(200):
        try:
            peer = socket.create_connection((address, 29999))
            break
        except OSError:
            time.sleep(0.05)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times_s = []
for _ in range(30):
    if is_server:
        peer.sendall(peer.recv(1))
    else:
        start_s = time.perf_counter()
        peer.sendall(b"x")
        peer.recv(1)
        times_s.append(time.perf_counter() - start_s)
if not is_server:
    print(statistics.median(times_s))
"""


def probe(nodes: TwoNodes) -> Link:
    """The link as the command on two agents finds it."""
    commands = [PROBE, PROBE]
    first, second = nodes.run(
        commands, [nodes.environment(node) for node in (0, 1)], time_limit_s=LIMIT_S
    )
    return link_of(first, second)


def link_of(first: links.Ended, second: links.Ended) -> Link:
    assert first.returncode == 0, first.stderr
    assert second.returncode == 0, second.stderr
    assert second.stdout == ""
    machine = machine_adapter().validate_python(json.loads(first.stdout)["machine"])
    (link,) = machine.links
    assert (link.num_ranks, link.num_nodes, link.backend) == (2, 2, "gloo")
    assert link.interface is not None
    assert (link.interface.name, link.interface.address) == ("wire0", "10.88.0.1")
    return link


def assert_rate(link: Link, rate_mbit: float) -> None:
    """Every way of moving much reaches the rate, within a tenth."""
    assert link.sizes()[-1].num_bytes == 4 * 2**20
    assert 8e-6 * link.bus_bytes_per_s == pytest.approx(rate_mbit, rel=0.1)
    assert 8e-6 * link.bandwidth_of("broadcast") == pytest.approx(rate_mbit, rel=0.1)
    # Of what each rank holds after an all-gather the half came over the link.
    assert 4e-6 * link.bandwidth_of("all-gather") == pytest.approx(rate_mbit, rel=0.1)
    assert 8e-6 * link.pairs[0].bytes_per_s == pytest.approx(rate_mbit, rel=0.1)


def test_at_100_mbit_under_torchrun() -> None:
    with links.shaped(100) as nodes:
        torchrun = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
            *("--nproc-per-node", "1", "--master-addr", nodes.addresses[0]),
            *("--master-port", "29500"),
        ]
        commands = [[*torchrun, "--node-rank", str(node), *PROBE[1:]] for node in (0, 1)]
        assert_rate(link_of(*nodes.run(commands, time_limit_s=LIMIT_S)), 100)


def test_at_50_mbit() -> None:
    with links.shaped(50) as nodes:
        assert_rate(probe(nodes), 50)


@pytest.mark.skipif(
    links.why_not(with_latency=True) is not None, reason=links.why_not(with_latency=True) or ""
)
def test_latency_is_a_matter_of_round_trips() -> None:
    with links.delayed(100, 0.02) as nodes:
        script = [sys.executable, "-c", PING_PONG]
        _, client = nodes.run([[*script, str(n), nodes.addresses[0]] for n in (0, 1)])
        round_trip_s = float(client.stdout)
        assert round_trip_s == pytest.approx(0.02, rel=0.2)
        link = probe(nodes)
    print(link.latency_s / round_trip_s, [p.latency_s / round_trip_s for p in link.pairs])
    assert statistics.median(link.exchanges[0].time.samples) == link.latency_s
