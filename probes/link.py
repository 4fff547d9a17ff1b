"""What collectives between ranks cost, and which way their traffic takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

from pydantic import TypeAdapter

from probes.reading import Finding, Reading

Collective: TypeAlias = Literal["all-reduce", "broadcast", "all-gather"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)

BARRIER = "barrier"
"""Name of the reading of a barrier."""
BUFFERS = "communication buffers"
"""Name of the reading of what the exchange keeps of a device."""
_SLOPE_RATIO = 16
"""The bandwidth comes from the sizes down to this part of the largest."""


def bus_factor(collective: Collective, num_ranks: int) -> float:
    """What the bytes per second of a message are multiplied with to get those of the link.

    nccl-tests (`doc/PERFORMANCE.md`) counts what each rank's link must carry at least, so that the
    figure can be held against the hardware's whatever the number of ranks: an all-reduce sends and
    receives every byte (n − 1)/n times twice, an all-gather the n − 1 shares of the others, a
    broadcast every byte once. A message's size is what each rank holds in the end.

    Args:
        collective: Which one.
        num_ranks: n.
    """
    match collective:
        case "all-reduce":
            return 2 * (num_ranks - 1) / num_ranks
        case "all-gather":
            return (num_ranks - 1) / num_ranks
        case "broadcast":
            return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One collective at one message size."""

    collective: Collective
    num_bytes: int
    """What each rank holds in the end."""
    time: Reading
    """Seconds of one call, on the rank that took longest."""
    slowest_rank: int = 0

    @property
    def algorithm_bytes_per_s(self) -> float:
        """Bytes of the message in a second."""
        return self.num_bytes / self.time.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Messages from one rank to another and back."""

    ranks: tuple[int, int]
    latency_s: float
    """Half of a round trip of a few bytes."""
    num_bytes: int
    bytes_per_s: float
    """One way, with messages of `num_bytes`, what a few bytes cost already taken off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface of one node."""

    name: str
    address: str
    bits_per_s: float | None = None
    """What the kernel tells of its hardware; None where there is none, or it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """How a device is connected, as NVML tells; None where it does not."""

    device_index: int
    """NVML's number."""
    num_nvlinks: int | None = None
    """NVLinks that are up."""
    pcie_generation: int | None = None
    """Of the link now; it is lower while the device idles."""
    pcie_width: int | None = None
    max_pcie_generation: int | None = None
    max_pcie_width: int | None = None
    peers: tuple[tuple[int, str], ...] = ()
    """Other devices and what lies on the way to each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What an exchange between ranks costs. Empty for one process."""

    backend: str
    num_ranks: int
    num_nodes: int = 1
    readings: tuple[Reading, ...] = ()
    """What is no exchange of a message, such as the barrier."""
    exchanges: tuple[Exchange, ...] = ()
    """By collective, then by size, ascending."""
    pairs: tuple[Pair, ...] = ()
    """Every two ranks, where there are few."""
    device_kind: str = "cpu"
    threads_of_rank: int | None = None
    """OMP_NUM_THREADS of each rank."""
    interface: Interface | None = None
    """What carried the traffic of rank 0; None where no network interface did."""
    wires: tuple[Wires, ...] = ()
    findings: tuple[Finding, ...] = ()

    def sizes(self, collective: Collective = "all-reduce") -> tuple[Exchange, ...]:
        """What was measured of a collective, by size."""
        return tuple(one for one in self.exchanges if one.collective == collective)

    def time_s(self, collective: Collective, num_bytes: float) -> float:
        """Seconds of a collective at any message size.

        Between two measured sizes a straight line in bytes and seconds: a message costs roughly a
        fixed time and a time per byte (nccl-tests, `doc/PERFORMANCE.md`), which such a line hits
        exactly, where a line between logarithms lies above it. Below the smallest size its own
        time, which is nearly all latency. Beyond the largest size the last time, and
        `bandwidth_of` for the bytes above it.

        Args:
            collective: Which one.
            num_bytes: What each rank holds in the end.

        Raises:
            ValueError: The collective was not measured.
        """
        measured = self.sizes(collective)
        if not measured:
            raise ValueError(f"no {collective} was measured")
        first, last = measured[0], measured[-1]
        if num_bytes <= first.num_bytes:
            return first.time.value
        for lower, upper in pairwise(measured):
            if num_bytes <= upper.num_bytes:
                part = (num_bytes - lower.num_bytes) / (upper.num_bytes - lower.num_bytes)
                return lower.time.value + part * (upper.time.value - lower.time.value)
        return last.time.value + (num_bytes - last.num_bytes) / self.bandwidth_of(collective)

    def all_reduce_s(self, num_bytes: float) -> float:
        """Seconds of an all-reduce, as `time_s` says."""
        return self.time_s("all-reduce", num_bytes)

    def is_extrapolated(self, num_bytes: float, collective: Collective = "all-reduce") -> bool:
        """Whether a time for so large a message rests on no measurement of that size."""
        measured = self.sizes(collective)
        return not measured or num_bytes > measured[-1].num_bytes

    def bandwidth_of(self, collective: Collective) -> float:
        """Bytes of message that take a second more, at the upper end of the measured sizes.

        The slope of a straight line through the largest sizes, each weighted with its time, so that
        the relative errors of all count alike.

        Raises:
            ValueError: The collective was not measured.
        """
        measured = self.sizes(collective)
        if not measured:
            raise ValueError(f"no {collective} was measured")
        upper = [m for m in measured if m.num_bytes * _SLOPE_RATIO >= measured[-1].num_bytes]
        weights = [1 / one.time.value**2 for one in upper]
        mean_bytes = _mean([one.num_bytes for one in upper], weights)
        mean_s = _mean([one.time.value for one in upper], weights)
        spread = sum(
            w * (o.num_bytes - mean_bytes) ** 2 for w, o in zip(weights, upper, strict=True)
        )
        common = sum(
            weight * (one.num_bytes - mean_bytes) * (one.time.value - mean_s)
            for weight, one in zip(weights, upper, strict=True)
        )
        # Where noise hides the slope, or there is but one size, the whole time is put to its bytes.
        return spread / common if common > 0 else upper[-1].algorithm_bytes_per_s

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """That of an all-reduce, in bytes of message."""
        return self.bandwidth_of("all-reduce")

    @property
    def bus_bytes_per_s(self) -> float:
        """Bytes a second that each rank's link carries one way in a large all-reduce."""
        return self.bandwidth_bytes_per_s * bus_factor("all-reduce", self.num_ranks)

    @property
    def latency_s(self) -> float:
        """Seconds of the smallest all-reduce that was measured."""
        return self.all_reduce_s(0)

    @property
    def barrier_s(self) -> float | None:
        """Seconds of a barrier, on the rank that took longest."""
        return next((r.value for r in self.readings if r.name == BARRIER), None)


@cache
def link_adapter() -> TypeAdapter[Link]:
    """The codec between links and JSON."""
    return TypeAdapter(Link)


def _mean(values: list[float] | list[int], weights: list[float]) -> float:
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
