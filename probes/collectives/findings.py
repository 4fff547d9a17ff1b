"""What is odd about an interconnect, in words: cause, then remedy."""

from __future__ import annotations

from collections.abc import Sequence

from probes.collectives.said import Said, Traffic
from probes.link import Exchange
from probes.machine import Machine
from probes.ranks import interfaces
from probes.ranks.launch import Ranks
from probes.reading import Finding
from probes.wording import size

_STEADY_RATIO = 0.1
"""Half the distance between the quartiles, by the median, up to which times count as steady."""


def left_out(said: Sequence[Said]) -> list[Finding]:
    """What is to be said of messages that were not sent for want of time."""
    found = []
    for one in said:
        if one.left_out is not None:
            collective, num_bytes = one.left_out
            found.append(
                Finding(
                    cause=f"There was no time for {collective} of {size(num_bytes)}.",
                    remedy="Times of such messages are reckoned from latency and bandwidth.",
                    is_problem=False,
                )
            )
    return found


def unsteady(exchanges: Sequence[Exchange]) -> list[Finding]:
    """What is to be said where the largest all-reduces took now longer, now shorter."""
    largest = [one for one in exchanges if one.collective == "all-reduce"][-1:]
    return [
        Finding(
            cause=f"The times of all-reduce of {size(one.num_bytes)} vary by "
            f"± {100 * one.time.half_iqr / one.time.value:.0f} %: something else uses the link or "
            "the cores.",
            remedy="Probe again when it is quiet.",
            is_problem=False,
        )
        for one in largest
        if one.time.half_iqr > _STEADY_RATIO * one.time.value
    ]


def threads(ranks: Ranks, machine: Machine, num_threads: int) -> list[Finding]:
    """What is to be said where the ranks of this node have more threads than it has cores."""
    num_cores = machine.host.num_cores
    wanted = ranks.num_local * num_threads
    if machine.device.kind != "cpu" or wanted <= num_cores:
        return []
    return [
        Finding(
            cause=f"{ranks.num_local} ranks with {num_threads} "
            f"thread{'s' if num_threads > 1 else ''} each share {num_cores:g} cores.",
            remedy="They wait for each other's cores; fewer processes may be as fast.",
            is_problem=False,
        )
    ]


def ways(traffic: Sequence[Traffic]) -> list[Finding]:
    """What is to be said of the interfaces that carried the traffic."""
    found = [
        interfaces.faster_one(one.interface, one.there, host=f"node {one.node_rank} ({one.host})")
        for one in traffic
        if one.interface is not None
    ]
    return [finding for finding in found if finding is not None]
