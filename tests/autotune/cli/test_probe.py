from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import replace

import pytest

from autotune.cli.app import main
from autotune.cli.commands import probe
from probes.collectives.probe import PAYLOAD_BYTES
from probes.collectives.steps import sizes
from probes.errors import ProbeError
from probes.link import COLLECTIVES, Collective, Exchange, Interface, Link, Pair, Wires
from probes.machine import Finding, Machine, Reading, machine_adapter
from tests.testing import links, runs

Captured = pytest.CaptureFixture[str]
MACHINE = replace(
    runs.machine(),
    readings=(
        Reading(
            name="memory bandwidth",
            unit="bytes_per_s",
            value=4.0e9,
            samples=(3.9e9, 4.0e9, 4.1e9),
            half_iqr=0.05e9,
            note="a copy",
        ),
        Reading(name="matmul float32", unit="flop_per_s", value=1.5e12),
    ),
    findings=(Finding(cause="No driver.", remedy="Install it.", is_problem=False),),
)


def _knows(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "known_machine", lambda **options: machine)


def test_probe_shows_readings_with_spread(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    _knows(MACHINE, monkeypatch)
    assert main(["probe"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "host Test processor, 2 cores",
        "memory 6.00 GiB available of 8.00 GiB (host)",
        "cpu:0 Test processor, 6.00 GiB free of 8.00 GiB (host)",
        "",
        "measured median ± half the IQR n",
        "memory bandwidth 4.00 GB/s 1.2 % 3 a copy",
        "matmul float32 1.50 TFLOP/s – 1",
        "",
        "· No driver. Install it.",
    ]


def test_probe_json_is_the_machine(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    _knows(MACHINE, monkeypatch)
    assert main(["probe", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert machine_adapter().validate_python(document["machine"]) == MACHINE


def test_probes_that_measure_nothing_are_a_device_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    finding = Finding(cause="The survey's process crashed.", remedy="Update the driver.")
    _knows(replace(runs.machine(), findings=(finding,)), monkeypatch)
    assert main(["probe", "--json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["machine"]["readings"] == []
    assert err == "Error: The survey's process crashed.\nHint: Update the driver.\n"


def _exchange(collective: Collective, num_bytes: int, seconds: float) -> Exchange:
    reading = Reading(
        name=collective, unit="s", value=seconds, samples=(seconds,) * 5, half_iqr=0.02 * seconds
    )
    return Exchange(collective=collective, num_bytes=num_bytes, time=reading, slowest_rank=1)


LINK = Link(
    backend="nccl",
    num_ranks=4,
    num_nodes=2,
    readings=(Reading(name="barrier", unit="s", value=0.002),),
    exchanges=(
        _exchange("all-reduce", 1024, 0.0005),
        _exchange("all-reduce", 4 * 2**20, 0.4),
        _exchange("all-gather", 4 * 2**20, 0.2),
    ),
    pairs=(
        Pair(ranks=(0, 1), latency_s=20e-6, num_bytes=2**20, bytes_per_s=2e10),
        Pair(ranks=(0, 2), latency_s=0.001, num_bytes=2**20, bytes_per_s=1.2e7),
    ),
    device_kind="cuda",
    threads_of_rank=2,
    interface=Interface(name="eth0", address="10.0.0.1", bits_per_s=1e8),
    wires=(Wires(device_index=0, num_nvlinks=4, pcie_width=16, max_pcie_generation=5),),
    findings=(Finding(cause="The way is slow.", remedy="Take another one."),),
)


def _measures(link: Link | ProbeError, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*arguments: object, **options: object) -> Link:
        if isinstance(link, ProbeError):
            raise link
        return link

    monkeypatch.setattr(probe, "measure", measure)


def test_the_link_between_ranks_in_words(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    _knows(MACHINE, monkeypatch)
    _measures(LINK, monkeypatch)
    assert main(["probe", "--processes", "4"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[8:] == [
        "ranks 4 on 2 nodes, nccl, 2 threads each",
        "traffic eth0 (10.0.0.1, 100 Mbit/s)",
        "device 0 4 NVLinks, PCIe 5 ×16",
        "latency 500 µs for the smallest all-reduce",
        "bandwidth 15.7 MB/s on the bus (126 Mbit/s)",
        "barrier 2 ms",
        "",
        "all-reduce median ± half the IQR n algorithm bus slowest",
        "1.00 KiB 500 µs 2.0 % 5 2.05 MB/s 3.07 MB/s rank 1",
        "4.00 MiB 0.40 s 2.0 % 5 10.5 MB/s 15.7 MB/s rank 1",
        "",
        "all-gather median ± half the IQR n algorithm bus slowest",
        "4.00 MiB 0.20 s 2.0 % 5 21.0 MB/s 15.7 MB/s rank 1",
        "",
        "one way rank 0 rank 1 rank 2 rank 3",
        "rank 0 – 20.0 µs 1 ms –",
        "rank 1 20.0 GB/s – – –",
        "rank 2 12.0 MB/s – – –",
        "rank 3 – – – –",
        "latency above the diagonal, bandwidth below it",
        "",
        "· No driver. Install it.",
        "▲ The way is slow. Take another one.",
    ]


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        (ProbeError("Two devices.", "Take two.", is_usage=True), 2),
        (ProbeError("Node 1 did not join.", "Start it."), 3),
        (replace(LINK, exchanges=()), 3),
    ],
)
def test_trouble_between_ranks_has_its_exit_code(
    trouble: Link | ProbeError,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    _knows(MACHINE, monkeypatch)
    _measures(trouble, monkeypatch)
    assert main(["probe", "--processes", "2", "--json"]) == code
    out, err = capsys.readouterr()
    document = json.loads(out)
    if isinstance(trouble, ProbeError):
        assert document["error"] == {"cause": trouble.cause, "remedy": trouble.remedy}
        assert err == f"Error: {trouble.cause}\nHint: {trouble.remedy}\n"
    else:
        assert document["machine"]["links"][0]["exchanges"] == []
        assert err == "Error: The way is slow.\nHint: Take another one.\n"


@pytest.mark.parametrize(
    ("arguments", "variables", "cause"),
    [
        (["--processes", "0"], {}, "--processes must be at least 1, not 0."),
        (["--processes", "100000"], {}, "100000 processes are far more than the"),
        (["--processes", "2"], {"GLOO_SOCKET_IFNAME": "none9"}, "GLOO_SOCKET_IFNAME names"),
        (
            ["--processes", "2"],
            {**links.node_environment(0, "localhost", 1), "LOCAL_WORLD_SIZE": "2"},
            "This is one of 2 processes on its node.",
        ),
    ],
)
def test_impossible_ranks_are_usage_errors(
    arguments: list[str],
    variables: Mapping[str, str],
    cause: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    _knows(MACHINE, monkeypatch)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["probe", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"Error: {cause}")


def test_three_real_ranks_are_timed_in_every_way(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    _knows(MACHINE, monkeypatch)
    assert main(["probe", "--processes", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    (link,) = machine_adapter().validate_python(json.loads(out)["machine"]).links
    assert (link.backend, link.device_kind, link.num_ranks) == ("gloo", "cpu", 3)
    assert link.threads_of_rank == 1
    for collective in COLLECTIVES:
        wanted = sizes(PAYLOAD_BYTES)
        if collective == "all-gather":
            # Whole numbers of three ranks each.
            wanted = [size // 12 * 12 for size in wanted]
        found = [one.num_bytes for one in link.sizes(collective)]
        # On a busy machine there is no time for the last.
        assert found in (wanted, wanted[:-1])
    for one in link.exchanges:
        assert len(one.time.samples) >= 3
        assert min(one.time.samples) <= one.time.value <= max(one.time.samples)
        assert 0 <= one.slowest_rank < 3
    assert link.barrier_s is not None
    assert 0 < link.barrier_s < 5
    assert [pair.ranks for pair in link.pairs] == [(0, 1), (0, 2), (1, 2)]
    assert all(0 < pair.latency_s < 1 and pair.bytes_per_s > 0 for pair in link.pairs)
    assert link.interface is not None
    assert link.interface.name == next(n for _, n in socket.if_nameindex() if n.startswith("lo"))
    assert "3 ranks with 1 thread each share 2 cores." in [f.cause for f in link.findings]
    assert not [finding for finding in link.findings if finding.is_problem]
    assert "Probing all-reduce between ranks\nProbing broadcast between ranks\n" in err
