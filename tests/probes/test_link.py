from __future__ import annotations

from dataclasses import replace

import pytest

from probes.link import Collective, Exchange, Link, bus_factor
from probes.machine import Machine, Reading, machine_adapter
from tests.probes.test_store import MACHINE

KIB = 1024


def exchange(num_bytes: int, seconds: float, collective: Collective = "all-reduce") -> Exchange:
    reading = Reading(name=collective, unit="s", value=seconds, samples=(seconds,) * 3)
    return Exchange(collective=collective, num_bytes=num_bytes, time=reading)


def link(*exchanges: Exchange, num_ranks: int = 2) -> Link:
    return Link(backend="gloo", num_ranks=num_ranks, exchanges=exchanges)


def line(latency_s: float, bytes_per_s: float, *, num: int = 7) -> Link:
    """A link whose messages cost a fixed time and a time per byte."""
    sizes = [KIB * 4**power for power in range(num)]
    return link(*(exchange(size, latency_s + size / bytes_per_s) for size in sizes))


def test_a_measured_size_costs_what_was_measured() -> None:
    found = link(exchange(1000, 1.0), exchange(2000, 5.0), exchange(4000, 6.0))
    assert [found.all_reduce_s(size) for size in (1000, 2000, 4000)] == [1.0, 5.0, 6.0]


def test_between_two_sizes_a_line_is_hit_exactly() -> None:
    found = line(0.016, 11e6)
    for num_bytes in (1500, 3_340_000, 70_001):
        assert found.all_reduce_s(num_bytes) == pytest.approx(0.016 + num_bytes / 11e6)
        assert not found.is_extrapolated(num_bytes)


def test_beyond_the_largest_size_latency_and_bandwidth_count() -> None:
    found = line(0.016, 11e6)
    assert found.is_extrapolated(100_000_000)
    assert found.all_reduce_s(100_000_000) == pytest.approx(0.016 + 100_000_000 / 11e6)
    assert found.bandwidth_bytes_per_s == pytest.approx(11e6)


def test_the_smallest_size_stands_for_all_below() -> None:
    found = line(0.016, 11e6)
    assert found.latency_s == found.all_reduce_s(4) == found.all_reduce_s(1024)
    assert found.latency_s == pytest.approx(0.016 + 1024 / 11e6)


def test_steps_between_small_sizes_leave_the_bandwidth_alone() -> None:
    smooth = line(0.016, 11e6)
    steps = [replace(one, time=replace(one.time, value=0.03)) for one in smooth.exchanges[1:4]]
    rough = replace(smooth, exchanges=(smooth.exchanges[0], *steps, *smooth.exchanges[4:]))
    assert rough.bandwidth_bytes_per_s == pytest.approx(11e6)
    assert rough.all_reduce_s(2500) > smooth.all_reduce_s(2500)


def test_one_size_and_hopeless_noise_put_all_time_to_the_bytes() -> None:
    assert link(exchange(1000, 0.5)).bandwidth_bytes_per_s == 2000
    falling = link(exchange(1000, 0.5), exchange(4000, 0.4))
    assert falling.bandwidth_bytes_per_s == 10_000
    assert falling.all_reduce_s(8000) == pytest.approx(0.8)


def test_nothing_measured_is_no_time() -> None:
    empty = link()
    assert empty.is_extrapolated(1)
    with pytest.raises(ValueError, match="no all-reduce was measured"):
        empty.all_reduce_s(1)
    with pytest.raises(ValueError, match="no broadcast was measured"):
        empty.bandwidth_of("broadcast")


@pytest.mark.parametrize(
    ("num_ranks", "factors"), [(2, (1.0, 0.5, 1.0)), (4, (1.5, 0.75, 1.0)), (8, (1.75, 0.875, 1))]
)
def test_bus_bandwidth_takes_the_factors_of_nccl_tests(
    num_ranks: int, factors: tuple[float, float, float]
) -> None:
    names: tuple[Collective, ...] = ("all-reduce", "all-gather", "broadcast")
    assert tuple(bus_factor(name, num_ranks) for name in names) == factors
    found = replace(line(0.0, 1e6), num_ranks=num_ranks)
    assert found.bus_bytes_per_s == pytest.approx(factors[0] * 1e6)


def test_collectives_are_kept_apart() -> None:
    found = link(exchange(1000, 1.0), exchange(1000, 2.0, "broadcast"))
    assert found.time_s("broadcast", 1000) == 2.0
    assert found.all_reduce_s(1000) == 1.0
    assert found.exchanges[1].algorithm_bytes_per_s == 500


def test_a_link_goes_to_json_and_back() -> None:
    machine = replace(MACHINE, links=(line(0.016, 11e6),))
    adapter = machine_adapter()
    again: Machine = adapter.validate_json(adapter.dump_json(machine))
    assert again == machine
    assert again.links[0].all_reduce_s(5000) == machine.links[0].all_reduce_s(5000)
