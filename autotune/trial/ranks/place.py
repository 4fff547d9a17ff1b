"""A rank's place among the others, and the company in which it measures.

A measurement on several ranks happens in one process a rank, and these meet for one command alone:
their process group is made for it and goes with it, so that a rank that fails leaves nothing behind
for the next command. What they must agree on goes through the launcher's store, never through the
group that is being measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from probes.ranks.launch import store_at

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

FAREWELL_S = 30.0
"""How long a rank that has finished waits for the others, whose last message may be on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which of the ranks a process is, and where they meet."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    address: str
    """Of the launcher's store."""
    port: int

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Place:
        """The place that a launcher gave to a process.

        Raises:
            KeyError: The process was not started by a launcher.
        """
        return cls(
            rank=int(environment["RANK"]),
            local_rank=int(environment["LOCAL_RANK"]),
            world_size=int(environment["WORLD_SIZE"]),
            local_world_size=int(environment["LOCAL_WORLD_SIZE"]),
            address=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
        )

    @property
    def variables(self) -> dict[str, str]:
        """What a training library reads its place from."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }

    def store(self, prefix: str, timeout_s: float) -> Store:
        """A client of the launcher's store that sees the keys of `prefix` alone."""
        return store_at(self.address, self.port, prefix, timeout_s)


class Company(Protocol):
    """Who measures together, and agrees on what all of them must do alike."""

    @property
    def num_ranks(self) -> int:
        """How many there are."""
        ...

    def agree(self, number: int) -> int:
        """The first rank's number, on every rank; all leave this call at about the same time."""
        ...

    def part(self) -> None:
        """Waits until every rank is done with its measurement."""
        ...


class _Alone:
    """One process, which agrees with itself."""

    num_ranks = 1

    def agree(self, number: int) -> int:
        return number

    def part(self) -> None:
        return


ALONE: Company = _Alone()
"""The company of a process that measures by itself."""


class Ranks:
    """The ranks of one command, joined by a process group of its own.

    Args:
        place: This rank's.
        meeting: A name that no other command has.
        timeout_s: After this a collective, or a wait for an agreement, fails.
    """

    def __init__(self, place: Place, meeting: str, timeout_s: float) -> None:
        import torch
        import torch.distributed as dist

        os.environ.update(place.variables)
        self.place = place
        self._meeting = meeting
        self._timeout_s = timeout_s
        self._store = place.store(meeting, timeout_s)
        self._num_agreements = 0
        if torch.accelerator.is_available():
            torch.accelerator.set_device_index(place.local_rank)
            device = torch.accelerator.current_accelerator()
            assert device is not None
            backend = dist.get_default_backend_for_device(device)
        else:
            backend = "gloo"
        dist.init_process_group(
            backend,
            store=self._store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=timeout_s),
        )

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return self.place.world_size

    def agree(self, number: int) -> int:
        """The first rank's number, on every rank."""
        self._num_agreements += 1
        name = f"agreement/{self._num_agreements}"
        self._wait_for_all(f"{name}/arrived")
        if self.place.rank == 0:
            self._store.set(name, str(number))
            return number
        return int(self._store.get(name))

    def store(self, name: str) -> Store:
        """A store of this command that all ranks reach, beside the group that is measured."""
        return self.place.store(f"{self._meeting}/{name}", self._timeout_s)

    def part(self) -> None:
        """Waits until every rank is done, or long enough."""
        self._wait_for_all("parted", limit_s=FAREWELL_S)

    def leave(self) -> None:
        """Takes the process group down."""
        import torch.distributed as dist

        dist.destroy_process_group()

    def _wait_for_all(self, name: str, limit_s: float | None = None) -> None:
        """Returns when every rank has come to this point."""
        if self._store.add(f"{name}/count", 1) == self.place.world_size:
            self._store.set(name, "all")
            return
        if limit_s is None:
            self._store.wait([name])
            return
        deadline_s = time.monotonic() + limit_s
        while not self._store.check([name]) and time.monotonic() < deadline_s:
            time.sleep(0.01)


@contextmanager
def joined(
    place: Place, meeting: str, timeout_s: float, *, stays: Callable[[], bool]
) -> Iterator[Company]:
    """Joins the other ranks, and parts with them where all went well.

    Args:
        place: This rank's.
        meeting: A name that no other command has.
        timeout_s: After this a collective, or a wait for an agreement, fails.
        stays: Whether the process group is left as it is at the end.
    """
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    ranks = Ranks(place, meeting, timeout_s)
    yield ranks
    ranks.part()
    if not stays():
        ranks.leave()
