"""The link between ranks in words."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.cli import summary
from autotune.display import output
from autotune.units import format_bytes, format_quantity, format_short_time
from probes.link import COLLECTIVES, Link, bus_factor


def text(link: Link) -> list[str]:
    """What was measured between the ranks, and which way their traffic takes."""
    lines = summary.table([], _facts(link))
    for collective in COLLECTIVES:
        exchanges = link.sizes(collective)
        if not exchanges:
            continue
        head = (collective, "median", "± half the IQR", "n", "algorithm", "bus", "slowest")
        factor = bus_factor(collective, link.num_ranks)
        rows = [
            (
                format_bytes(one.num_bytes),
                format_short_time(one.time.value),
                f"{100 * one.time.half_iqr / one.time.value:.1f} %",
                str(len(one.time.samples)),
                format_quantity(one.algorithm_bytes_per_s, "B/s"),
                format_quantity(one.algorithm_bytes_per_s * factor, "B/s"),
                f"rank {one.slowest_rank}",
            )
            for one in exchanges
        ]
        lines += ["", *summary.table(head, rows, right=(0, 1, 2, 3, 4, 5))]
    if link.num_ranks > 2 and link.pairs:
        lines += ["", *_matrix(link)]
    return lines


def _facts(link: Link) -> list[tuple[str, str]]:
    nodes = f" on {link.num_nodes} nodes" if link.num_nodes > 1 else ""
    threads = ""
    if link.threads_of_rank is not None:
        threads = f", {link.threads_of_rank} thread{'s' if link.threads_of_rank > 1 else ''} each"
    rows = [("ranks", f"{link.num_ranks}{nodes}, {link.backend or 'no backend'}{threads}")]
    if link.interface is not None:
        speed = link.interface.bits_per_s
        rate = f", {format_quantity(speed, 'bit/s')}" if speed is not None else ""
        rows.append(("traffic", f"{link.interface.name} ({link.interface.address}{rate})"))
    elif link.exchanges:
        rows.append(("traffic", "no network interface: memory or links between devices"))
    for wires in link.wires:
        parts = []
        if wires.num_nvlinks is not None:
            parts.append(f"{wires.num_nvlinks} NVLinks")
        if wires.pcie_width is not None:
            parts.append(
                f"PCIe {wires.max_pcie_generation or wires.pcie_generation} ×{wires.pcie_width}"
            )
        parts += [f"{way} to device {other}" for other, way in wires.peers]
        if parts:
            rows.append((f"device {wires.device_index}", ", ".join(parts)))
    if link.sizes():
        rows.append(("latency", f"{format_short_time(link.latency_s)} for the smallest all-reduce"))
        rows.append(
            (
                "bandwidth",
                f"{format_quantity(link.bus_bytes_per_s, 'B/s')} on the bus "
                f"({format_quantity(8 * link.bus_bytes_per_s, 'bit/s')})",
            )
        )
    if link.barrier_s is not None:
        rows.append(("barrier", format_short_time(link.barrier_s)))
    if link.num_ranks == 2:
        rows += [
            (
                "one way",
                f"{format_short_time(pair.latency_s)} for a few bytes, "
                f"{format_quantity(pair.bytes_per_s, 'B/s')} for {format_bytes(pair.num_bytes)}",
            )
            for pair in link.pairs
        ]
    return [(name, output.one_line(value)) for name, value in rows]


def _matrix(link: Link) -> list[str]:
    """Latency above the diagonal, bandwidth below it."""
    found = {pair.ranks: pair for pair in link.pairs}
    rows: list[Sequence[str]] = []
    for one in range(link.num_ranks):
        row = [f"rank {one}"]
        for other in range(link.num_ranks):
            pair = found.get((min(one, other), max(one, other)))
            if pair is None:
                row.append("–")
            elif one < other:
                row.append(format_short_time(pair.latency_s))
            else:
                row.append(format_quantity(pair.bytes_per_s, "B/s"))
        rows.append(row)
    head = ["one way", *(f"rank {rank}" for rank in range(link.num_ranks))]
    table = summary.table(head, rows, right=range(1, link.num_ranks + 1))
    return [*table, "latency above the diagonal, bandwidth below it"]
