"""What ranks have said of their link, put together."""

from __future__ import annotations

from collections.abc import Sequence

from probes.collectives import findings, wires
from probes.collectives.said import Said
from probes.link import COLLECTIVES, Link
from probes.machine import Machine
from probes.ranks.launch import Ranks
from probes.reading import Finding


def link_of(
    said: Sequence[Said],
    ranks: Ranks,
    machine: Machine,
    *,
    num_threads: int,
    faults: Sequence[Finding] = (),
) -> Link:
    """The link, as far as it was measured.

    Args:
        said: By rank 0, in its order.
        ranks: How many, and where.
        machine: This node.
        num_threads: Of each rank.
        faults: Why the measurement is not whole, where it is not.
    """
    started = next((one.started for one in said if one.started is not None), None)
    order = {name: number for number, name in enumerate(COLLECTIVES)}
    exchanges = [one.exchange for one in said if one.exchange is not None]
    traffic = [one.traffic for one in said if one.traffic is not None]
    device_kind = started.device_kind if started is not None else machine.device.kind
    found_wires = wires.look() if device_kind == "cuda" else ()
    odd = [
        *faults,
        *findings.left_out(said),
        *findings.unsteady(exchanges),
        *findings.threads(ranks, machine, num_threads),
        *findings.ways(traffic),
        *(finding for one in found_wires if (finding := wires.narrow(one)) is not None),
    ]
    return Link(
        backend=started.backend if started is not None else "",
        num_ranks=ranks.num_processes,
        num_nodes=ranks.num_nodes,
        readings=tuple(one.reading for one in said if one.reading is not None),
        exchanges=tuple(sorted(exchanges, key=lambda e: (order[e.collective], e.num_bytes))),
        pairs=tuple(one.pair for one in said if one.pair is not None),
        device_kind=device_kind,
        threads_of_rank=num_threads,
        interface=next((one.interface for one in traffic if one.node_rank == 0), None),
        wires=found_wires,
        findings=tuple(odd),
    )
