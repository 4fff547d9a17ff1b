"""What the ranks of a group time together, one step after the other.

Collectives over message sizes from small to large, a barrier, and messages between every two ranks;
what has no time is left out and said.
"""

from __future__ import annotations

import json
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import combinations
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from probes.collectives.group import MIN_SAMPLES, Group, Node, reading
from probes.collectives.said import Said, Traffic
from probes.link import BARRIER, COLLECTIVES, Collective, Exchange, Pair, bus_factor
from probes.ranks import interfaces
from probes.wording import size

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Store  # type: ignore[attr-defined]

SMALLEST_BYTES = 1024
STEP_RATIO = 4
"""From one message size to the next."""
MAX_PAIRED_RANKS = 8
"""Up to so many ranks every pair is timed."""

_SHARES: dict[str, float] = {
    BARRIER: 0.05,
    "all-reduce": 0.4,
    "broadcast": 0.25,
    "all-gather": 0.17,
    "pairs": 0.13,
}
"""What part of the time each step may take."""
_SLOT = 1 / 16
"""What part of a step's time the samples of each size but the largest may take, so that most of it
is left for the largest, which takes four times as long as the one before."""
_PING_BYTES = 8
_NUM_PINGS = 25
_MIN_PAIR_BYTES = 64 * 1024


def sizes(payload_bytes: int) -> list[int]:
    """The message sizes, from the smallest to the payload.

    Args:
        payload_bytes: The largest.
    """
    found = []
    num_bytes = SMALLEST_BYTES
    while num_bytes < payload_bytes:
        found.append(num_bytes)
        num_bytes *= STEP_RATIO
    return [*found, payload_bytes]


def _collective(
    group: Group, collective: Collective, num_bytes: int
) -> tuple[Callable[[], object], int]:
    """A call of a collective, and the bytes that each rank holds after it."""
    dist = group.dist
    match collective:
        case "all-reduce":
            whole = group.buffer(num_bytes)
            return lambda: dist.all_reduce(whole), whole.nbytes
        case "broadcast":
            whole = group.buffer(num_bytes)
            return lambda: dist.broadcast(whole, 0), whole.nbytes
        case "all-gather":
            own = group.buffer(num_bytes // group.num_ranks)
            everybody = group.buffer(own.nbytes * group.num_ranks)
            gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
            return lambda: gather(everybody, own), everybody.nbytes


def _time_collective(
    group: Group, collective: Collective, payload_bytes: int, share_s: float
) -> tuple[float, float]:
    """Times a collective over all sizes for which there is time.

    Returns:
        Bytes that this rank has sent at least, and the bytes a second that each link carried at the
        largest size, on which all ranks agree.
    """
    start_s = time.perf_counter()
    spent_s = once_s = sent_bytes = bytes_per_s = 0.0
    last_bytes = SMALLEST_BYTES
    for wanted_bytes in sizes(payload_bytes):
        # A message takes at most in proportion longer than a smaller one.
        longest_s = once_s * wanted_bytes / last_bytes
        if spent_s + longest_s * (1 + MIN_SAMPLES) > share_s:
            group.tell(Said(left_out=(collective, wanted_bytes)))
            break
        call, num_bytes = _collective(group, collective, wanted_bytes)
        group.tell(Said(step=f"{collective} of {size(num_bytes)}"))
        is_last = wanted_bytes == payload_bytes
        slot_s = share_s - spent_s - longest_s if is_last else _SLOT * share_s
        samples_s, slowest, once_s = group.samples(call, slot_s=slot_s)
        exchange = Exchange(
            collective=collective,
            num_bytes=num_bytes,
            time=reading(collective, samples_s),
            slowest_rank=slowest,
        )
        group.tell(Said(exchange=exchange))
        last_bytes = wanted_bytes
        sent_bytes += bus_factor(collective, group.num_ranks) * num_bytes * len(samples_s)
        bytes_per_s = bus_factor(collective, group.num_ranks) * num_bytes / once_s
        (spent_s,) = group.agree(time.perf_counter() - start_s)
    return sent_bytes, bytes_per_s


def _time_pairs(group: Group, payload_bytes: int, share_s: float, bytes_per_s: float) -> None:
    """Times messages between every two ranks, one pair after the other."""
    pairs = list(combinations(range(group.num_ranks), 2))
    # There and back, and both once more for warming up.
    fitting_bytes = share_s / len(pairs) * bytes_per_s / (2 * (MIN_SAMPLES + 1))
    num_bytes = int(min(payload_bytes, max(_MIN_PAIR_BYTES, fitting_bytes))) // 4 * 4
    small, large = group.buffer(_PING_BYTES), group.buffer(num_bytes)
    for first, second in pairs:
        group.tell(Said(step=f"messages between ranks {first} and {second}"))
        found = [0.0, 0.0]
        if group.rank in (first, second):
            other = second if group.rank == first else first
            found = [
                _one_way_s(group, other, message, is_first=group.rank == first)
                for message in (small, large)
            ]
        # The others wait here, so that only one pair at a time is on the wire.
        latency_s, large_s = group.agree(*found)
        bytes_more = large.nbytes - small.nbytes
        group.tell(
            Said(
                pair=Pair(
                    ranks=(first, second),
                    latency_s=latency_s,
                    num_bytes=large.nbytes,
                    bytes_per_s=bytes_more / max(large_s - latency_s, 1e-9),
                )
            )
        )


def _one_way_s(group: Group, other: int, message: Tensor, *, is_first: bool) -> float:
    """Half of the median round trip of a message between this rank and another one."""
    dist = group.dist

    def move(operation: Callable[..., object]) -> None:
        # In a batch the group's own connections are used, where single calls would open others.
        for work in dist.batch_isend_irecv([dist.P2POp(operation, message, other)]):
            work.wait()

    there, back = (dist.isend, dist.irecv) if is_first else (dist.irecv, dist.isend)
    num_round_trips = MIN_SAMPLES if message.nbytes > _PING_BYTES else _NUM_PINGS
    times_s = []
    for _ in range(1 + num_round_trips):
        start_s = time.perf_counter()
        move(there)
        move(back)
        group.wait_for_device()
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s[1:]) / 2


def _traffic(node: Node, before: dict[str, int], sent_bytes: float) -> Traffic:
    """What carried the traffic of this node since then."""
    there = interfaces.interfaces()
    is_alone = node.num == 1
    # Between nodes nothing goes over a loopback, however busy it is with the ranks of each node.
    on_wire = {one.name for one in there if is_alone or not one.address.startswith(("127.", "::1"))}
    after = {name: count for name, count in interfaces.sent_bytes().items() if name in on_wire}
    name = interfaces.carrier(before, after, sent_bytes)
    return Traffic(
        node_rank=node.rank,
        host=socket.gethostname(),
        interface=next((one for one in there if one.name == name), None),
        there=there,
    )


def measure(group: Group, store: Store, *, payload_bytes: int, time_limit_s: float) -> None:
    """Times everything; rank 0 tells what is found. All ranks make this call.

    Args:
        group: Made, and idle.
        store: Reaches all ranks, beside the group; its keys are of this call alone.
        payload_bytes: The largest message.
        time_limit_s: Time for everything; large sizes are left out where it is short.

    Raises:
        RuntimeError: A rank hangs or is gone, in the words of the backend or of the store.
    """
    group.tell(Said(step=BARRIER))
    samples_s, _, _ = group.samples(group.barrier, slot_s=_SHARES[BARRIER] * time_limit_s)
    group.tell(Said(reading=reading(BARRIER, samples_s)))
    sent_before = interfaces.sent_bytes()
    moved = {
        collective: _time_collective(
            group, collective, payload_bytes, _SHARES[collective] * time_limit_s
        )
        for collective in COLLECTIVES
    }
    sent_bytes, bytes_per_s = moved["all-reduce"]
    if group.node.is_first_here:
        traffic = _traffic(group.node, sent_before, sent_bytes)
        store.set(f"traffic/{traffic.node_rank}", json.dumps(asdict(traffic)))
        if group.rank == 0:
            for node in range(group.node.num):
                found = TypeAdapter(Traffic).validate_json(store.get(f"traffic/{node}"))
                group.tell(Said(traffic=found))
    if group.num_ranks <= MAX_PAIRED_RANKS:
        _time_pairs(group, payload_bytes, _SHARES["pairs"] * time_limit_s, bytes_per_s)
