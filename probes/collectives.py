"""Times collectives on every rank of a group: the module that the ranks run.

Rank 0 writes what is found, line by line, to a file that the caller follows; so what was measured
before a rank hangs is not lost.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import combinations, pairwise
from types import ModuleType
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from probes import interfaces, torch_devices
from probes.launch import rank_store
from probes.link import (
    BARRIER,
    BUFFERS,
    COLLECTIVES,
    Collective,
    Exchange,
    Interface,
    Pair,
    bus_factor,
)
from probes.reading import Reading
from probes.timing import OUTLIER_RATIO, half_iqr
from probes.wording import first_line, size

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as TorchDevice  # noqa: N812 - a class in all but its name

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
_SAMPLE_S = 0.01
"""Shorter calls are repeated until a sample is this long."""
_MIN_SAMPLES = 3
_MAX_SAMPLES = 15
_SLOT = 1 / 16
"""What part of a step's time the samples of each size but the largest may take, so that most of it
is left for the largest, which takes four times as long as the one before."""
_PING_BYTES = 8
_NUM_PINGS = 25
_MIN_PAIR_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the ranks are told."""

    out: str
    """File that rank 0 appends lines to."""
    payload_bytes: int
    """The largest message."""
    time_limit_s: float
    """Time for everything after the start; large sizes are left out where it is short."""
    call_limit_s: float
    """Time after which a collective counts as hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The group is there."""

    backend: str
    device_kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What carried the traffic of one node."""

    node_rank: int
    host: str
    interface: Interface | None
    there: tuple[Interface, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One line: exactly one field is given."""

    step: str | None = None
    """What begins now."""
    started: Started | None = None
    reading: Reading | None = None
    exchange: Exchange | None = None
    left_out: tuple[Collective, int] | None = None
    """A message size for which there was no time, and its collective."""
    pair: Pair | None = None
    traffic: Traffic | None = None
    fault: str | None = None
    """Why rank 0 gave up."""


SAID: TypeAdapter[Said] = TypeAdapter(Said)


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


def default_backend(dist: ModuleType, kind: str) -> str:
    """The backend that torch takes for a device by itself: gloo for a CPU, nccl for CUDA.

    Args:
        dist: `torch.distributed`.
        kind: torch's device type.
    """
    return str(dist.Backend.default_device_backend_map.get(kind, "gloo"))


@dataclass(slots=True, kw_only=True)
class _Group:
    """The process group, as one rank sees it."""

    torch: ModuleType
    dist: ModuleType
    device: TorchDevice
    out: str
    rank: int = field(init=False)
    num_ranks: int = field(init=False)

    def __post_init__(self) -> None:
        self.rank = self.dist.get_rank()
        self.num_ranks = self.dist.get_world_size()

    def tell(self, said: Said) -> None:
        if self.rank != 0:
            return
        with open(self.out, "ab") as file:
            file.write(SAID.dump_json(said, exclude_defaults=True) + b"\n")

    def wait_for_device(self) -> None:
        if self.device.type != "cpu":
            self.torch.accelerator.synchronize()

    def buffer(self, num_bytes: int) -> Tensor:
        # Sums of zeros stay zeros, however often they are summed.
        made: Tensor = self.torch.zeros(max(1, num_bytes // 4), device=self.device)
        return made

    def barrier(self) -> None:
        if self.device.type == "cpu":
            self.dist.barrier()
        else:
            self.dist.barrier(device_ids=[self.device.index])

    def agree(self, *values: float) -> list[float]:
        """The largest of every rank, so that all decide alike."""
        shared = self.torch.tensor(values, dtype=self.torch.float32, device=self.device)
        self.dist.all_reduce(shared, op=self.dist.ReduceOp.MAX)
        return [float(value) for value in shared.tolist()]

    def samples(
        self, call: Callable[[], object], *, slot_s: float
    ) -> tuple[list[float], int, float]:
        """Times a call that all ranks make together.

        The calls follow each other without a pause, as nccl-tests makes them: whatever apart the
        ranks are at the first, the later ones hold them together.

        Args:
            call: The same on every rank.
            slot_s: Time for all samples; there are at least three.

        Returns:
            Seconds of a call in each sample on the rank that took longest, its number, and the
            seconds of one call that all ranks agreed on beforehand.
        """
        call()
        self.wait_for_device()
        start_s = time.perf_counter()
        call()
        self.wait_for_device()
        first_s = time.perf_counter() - start_s
        (once_s,) = self.agree(first_s)
        num_calls = max(1, min(1000, round(_SAMPLE_S / once_s)))
        num_samples = int(slot_s / (once_s * num_calls))
        num_samples = max(_MIN_SAMPLES, min(_MAX_SAMPLES, num_samples))
        own = []
        if num_calls == 1:
            # So long a call is a sample of its own, and hardly feels how far apart the ranks are.
            own.append(first_s)
        else:
            # Agreeing has set the ranks apart again.
            call()
        self.wait_for_device()
        times_s = [time.perf_counter()]
        while len(own) + len(times_s) <= num_samples:
            for _ in range(num_calls):
                call()
            self.wait_for_device()
            times_s.append(time.perf_counter())
        own += [(end_s - start_s) / num_calls for start_s, end_s in pairwise(times_s)]
        everybody = self._gather(own)
        slowest = max(range(self.num_ranks), key=lambda rank: statistics.median(everybody[rank]))
        return everybody[slowest], slowest, once_s

    def _gather(self, values: list[float]) -> list[list[float]]:
        own = self.torch.tensor(values, dtype=self.torch.float32, device=self.device)
        found = [self.torch.empty_like(own) for _ in range(self.num_ranks)]
        self.dist.all_gather(found, own)
        return [[float(value) for value in one.tolist()] for one in found]


def _reading(name: str, samples_s: Sequence[float]) -> Reading:
    median_s = statistics.median(samples_s)
    num_slow = sum(sample > OUTLIER_RATIO * median_s for sample in samples_s)
    note = None
    if num_slow:
        note = (
            f"{num_slow} of {len(samples_s)} samples took over {OUTLIER_RATIO:g} times the median"
        )
    samples = tuple(samples_s)
    return Reading(
        name=name, unit="s", value=median_s, samples=samples, half_iqr=half_iqr(samples), note=note
    )


def _collective(
    group: _Group, collective: Collective, num_bytes: int
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
    group: _Group, collective: Collective, payload_bytes: int, share_s: float
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
        if spent_s + longest_s * (1 + _MIN_SAMPLES) > share_s:
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
            time=_reading(collective, samples_s),
            slowest_rank=slowest,
        )
        group.tell(Said(exchange=exchange))
        last_bytes = wanted_bytes
        sent_bytes += bus_factor(collective, group.num_ranks) * num_bytes * len(samples_s)
        bytes_per_s = bus_factor(collective, group.num_ranks) * num_bytes / once_s
        (spent_s,) = group.agree(time.perf_counter() - start_s)
    return sent_bytes, bytes_per_s


def _time_pairs(group: _Group, payload_bytes: int, share_s: float, bytes_per_s: float) -> None:
    """Times messages between every two ranks, one pair after the other."""
    pairs = list(combinations(range(group.num_ranks), 2))
    # There and back, and both once more for warming up.
    fitting_bytes = share_s / len(pairs) * bytes_per_s / (2 * (_MIN_SAMPLES + 1))
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


def _one_way_s(group: _Group, other: int, message: Tensor, *, is_first: bool) -> float:
    """Half of the median round trip of a message between this rank and another one."""
    dist = group.dist

    def move(operation: Callable[..., object]) -> None:
        # In a batch the group's own connections are used, where single calls would open others.
        for work in dist.batch_isend_irecv([dist.P2POp(operation, message, other)]):
            work.wait()

    there, back = (dist.isend, dist.irecv) if is_first else (dist.irecv, dist.isend)
    num_round_trips = _MIN_SAMPLES if message.nbytes > _PING_BYTES else _NUM_PINGS
    times_s = []
    for _ in range(1 + num_round_trips):
        start_s = time.perf_counter()
        move(there)
        move(back)
        group.wait_for_device()
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s[1:]) / 2


def _traffic(before: dict[str, int], sent_bytes: float) -> Traffic:
    """What carried the traffic of this node since then."""
    there = interfaces.interfaces()
    is_alone = os.environ["GROUP_WORLD_SIZE"] == "1"
    # Between nodes nothing goes over a loopback, however busy it is with the ranks of each node.
    on_wire = {one.name for one in there if is_alone or not one.address.startswith(("127.", "::1"))}
    after = {name: count for name, count in interfaces.sent_bytes().items() if name in on_wire}
    name = interfaces.carrier(before, after, sent_bytes)
    return Traffic(
        node_rank=int(os.environ["GROUP_RANK"]),
        host=socket.gethostname(),
        interface=next((one for one in there if one.name == name), None),
        there=there,
    )


def _measure(group: _Group, options: Options) -> None:
    limit_s = options.time_limit_s
    group.tell(Said(step=BARRIER))
    samples_s, _, _ = group.samples(group.barrier, slot_s=_SHARES[BARRIER] * limit_s)
    group.tell(Said(reading=_reading(BARRIER, samples_s)))
    sent_before = interfaces.sent_bytes()
    moved = {
        collective: _time_collective(
            group, collective, options.payload_bytes, _SHARES[collective] * limit_s
        )
        for collective in COLLECTIVES
    }
    sent_bytes, bytes_per_s = moved["all-reduce"]
    if os.environ["LOCAL_RANK"] == "0":
        traffic = _traffic(sent_before, sent_bytes)
        store = rank_store("probe", options.call_limit_s)
        store.set(f"traffic/{traffic.node_rank}", json.dumps(asdict(traffic)))
        if group.rank == 0:
            for node in range(int(os.environ["GROUP_WORLD_SIZE"])):
                found = TypeAdapter(Traffic).validate_json(store.get(f"traffic/{node}"))
                group.tell(Said(traffic=found))
    if group.num_ranks <= MAX_PAIRED_RANKS:
        _time_pairs(group, options.payload_bytes, _SHARES["pairs"] * limit_s, bytes_per_s)


def _left_bytes(torch: ModuleType, device: TorchDevice) -> int | None:
    """What the device has left, its own allocator's part counted in; None on a CPU."""
    if device.type == "cpu":
        return None
    # The context is made here, so that it is not taken for a part of the exchange.
    torch.zeros(1, device=device)
    torch.accelerator.synchronize()
    told = torch_devices.memory(torch, device.type, device.index)
    if told is None:
        return None
    return told[0] + int(getattr(torch, device.type).memory_reserved(device.index))


def buffers_reading(before_bytes: int | None, after_bytes: int | None) -> Reading | None:
    """What the collectives of a group keep of a device outside torch's allocator.

    Args:
        before_bytes: What was left before the group's first collective.
        after_bytes: And after its last one.

    Returns:
        The reading; None where nothing could be read.
    """
    if before_bytes is None or after_bytes is None:
        return None
    taken = float(max(0, before_bytes - after_bytes))
    return Reading(
        name=BUFFERS,
        unit="bytes",
        value=taken,
        samples=(taken,),
        note="device memory that rank 0 lost from before the first collective to after the last",
    )


def main(arguments: Sequence[str]) -> int:
    """One rank's part."""
    options = Options(**json.loads(arguments[0]))
    import torch
    import torch.distributed as dist

    device = torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and torch.accelerator.is_available():
        index = int(os.environ["LOCAL_RANK"])
        torch.accelerator.set_device_index(index)
        device = torch.device(accelerator.type, index)
    backend = default_backend(dist, device.type)
    rank_of_job = int(os.environ["RANK"])
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=options.call_limit_s))
        group = _Group(torch=torch, dist=dist, device=device, out=options.out)
        group.tell(Said(started=Started(backend=backend, device_kind=device.type)))
        before_bytes = _left_bytes(torch, device)
        _measure(group, options)
        group.barrier()
        reading = buffers_reading(before_bytes, _left_bytes(torch, device))
        if reading is not None:
            group.tell(Said(reading=reading))
    except RuntimeError as error:  # what every backend raises for a peer that hangs or is gone
        print(f"Rank {rank_of_job}: {first_line(error)}", file=sys.stderr, flush=True)  # noqa: T201
        if rank_of_job == 0:
            with suppress(OSError), open(options.out, "ab") as file:
                file.write(SAID.dump_json(Said(fault=first_line(error))) + b"\n")
        return 1
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
