"""The process group as one rank sees it, and how calls that all ranks make are timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING

from probes.collectives.said import Said
from probes.reading import Reading
from probes.timing import half_iqr, slow_samples

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as TorchDevice  # noqa: N812 - a class in all but its name

MIN_SAMPLES = 3
"""So many samples are taken whatever they cost."""
_MAX_SAMPLES = 15
_SAMPLE_S = 0.01
"""Shorter calls are repeated until a sample is this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The machine that a rank runs on, among those of the group."""

    rank: int
    num: int
    """Machines of the group."""
    is_first_here: bool
    """Whether the rank is the first one of its machine, which speaks for it."""


@dataclass(slots=True, kw_only=True)
class Group:
    """The process group, which must have been made."""

    torch: ModuleType
    dist: ModuleType
    device: TorchDevice
    node: Node
    hear: Callable[[Said], None]
    """Is told by rank 0 what was found."""
    rank: int = field(init=False)
    num_ranks: int = field(init=False)

    def __post_init__(self) -> None:
        self.rank = self.dist.get_rank()
        self.num_ranks = self.dist.get_world_size()

    def tell(self, said: Said) -> None:
        """Tells whoever listens, on rank 0 alone."""
        if self.rank == 0:
            self.hear(said)

    def wait_for_device(self) -> None:
        """Returns when the device has done what was asked of it."""
        if self.device.type != "cpu":
            self.torch.accelerator.synchronize()

    def buffer(self, num_bytes: int) -> Tensor:
        """A message of about so many bytes; its sums stay zeros, however often it is summed."""
        made: Tensor = self.torch.zeros(max(1, num_bytes // 4), device=self.device)
        return made

    def barrier(self) -> None:
        """Returns when every rank is here."""
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
            slot_s: Time for all samples; there are at least `MIN_SAMPLES`.

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
        num_samples = max(MIN_SAMPLES, min(_MAX_SAMPLES, num_samples))
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


def reading(name: str, samples_s: Sequence[float]) -> Reading:
    """Times of a call as a reading, with a word where some stand out.

    Args:
        name: What was called.
        samples_s: Seconds of a call, from `Group.samples`.
    """
    samples = tuple(samples_s)
    return Reading(
        name=name,
        unit="s",
        value=statistics.median(samples),
        samples=samples,
        half_iqr=half_iqr(samples),
        note=slow_samples(samples),
    )
