"""What is known of the machine at one moment, from whoever asked the probes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from pydantic import TypeAdapter, ValidationError

from autotune.display.output import one_line
from autotune.events import Document, MachineProbed
from autotune.units import format_bytes
from autotune.view import RunView
from probes.link import Link
from probes.machine import Finding, Machine, Reading, machine_adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What the training process may occupy, and who says so."""

    limit_bytes: int
    usable_bytes: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A machine as far as it is known."""

    machine: Machine | None = None
    """None before the last probe has ended."""
    readings: tuple[Reading, ...] = ()
    """Those of the machine, or those of the probes that have ended."""
    running: str | None = None
    """The probe that runs now."""
    num_waiting: int = 0
    """Probes that come after it."""
    limit: Limit | None = None
    origin: str = ""
    """Who asked, in words."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is to be said of the machine and of its links."""
        if self.machine is None:
            return ()
        of_links = (finding for link in self.machine.links for finding in link.findings)
        return (*self.machine.findings, *of_links)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known and nobody asks."""
        return self.machine is None and not self.readings and self.running is None


def of_run(view: RunView, *, is_alive: bool = True) -> Found:
    """What a run knows of its machine; where no engine works on it, nothing is measured now."""
    if view.machine is not None:
        return of_machine(view.machine.machine, _limit(view.machine), origin="this run")
    if view.probing is None:
        return Found()
    readings = tuple(_readings(view.probing.readings))
    if not is_alive:
        return Found(readings=readings, origin="this run")
    return Found(
        readings=readings,
        running=one_line(view.probing.probe),
        num_waiting=view.probing.num_probes - view.probing.number,
        origin="this run",
    )


def of_plan(plan: Document) -> Found:
    """What planning a job found out on the way."""
    limit, usable = plan.get("memory_limit_bytes"), plan.get("usable_bytes")
    known = None
    if isinstance(limit, int) and isinstance(usable, int):
        source = one_line(str(plan.get("limit_source")))
        known = Limit(limit_bytes=limit, usable_bytes=usable, source=source)
    machine = plan.get("machine")
    return of_machine(
        machine if isinstance(machine, dict) else {}, known, origin="planning the job in setup"
    )


def of_machine(document: Document, limit: Limit | None, *, origin: str) -> Found:
    """A machine in its JSON form; one that cannot be read is as good as unknown."""
    try:
        machine = machine_adapter().validate_python(document)
    except ValidationError:
        return Found(limit=limit, origin=origin)
    machine = replace(machine, links=tuple(map(_drawable, machine.links)))
    return Found(machine=machine, readings=machine.readings, limit=limit, origin=origin)


def _drawable(link: Link) -> Link:
    """The link without exchanges that took no time, whose rate nobody can tell."""
    kept = (one for one in link.exchanges if math.isfinite(one.time.value) and one.time.value > 0)
    return replace(link, exchanges=tuple(kept))


def with_links(known: Found, other: Found) -> Found:
    """What a run knows, with the links between ranks that a probe measured beside it."""
    if known.machine is None or other.machine is None or known.machine.links:
        return known
    return replace(known, machine=replace(known.machine, links=other.machine.links))


def _limit(event: MachineProbed) -> Limit:
    return Limit(
        limit_bytes=event.memory_limit_bytes,
        usable_bytes=event.usable_bytes,
        source=one_line(event.limit_source),
    )


def limit_in_words(limit: Limit) -> str:
    """The limit, its source, and what stays free below it."""
    free = limit.limit_bytes - limit.usable_bytes
    return (
        f"{format_bytes(limit.limit_bytes)} ({limit.source}); "
        f"{format_bytes(limit.usable_bytes)} usable, a margin of {format_bytes(free)} is never "
        "filled"
    )


@cache
def _reading_adapter() -> TypeAdapter[Reading]:
    return TypeAdapter(Reading)


def _readings(documents: Iterable[Document]) -> Iterable[Reading]:
    for document in documents:
        try:
            yield _reading_adapter().validate_python(document)
        except ValidationError:
            continue
