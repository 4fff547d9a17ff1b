"""What the ranks of the interconnect probe are told, and what rank 0 says of them."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from probes.link import Collective, Exchange, Interface, Pair
from probes.reading import Reading


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
