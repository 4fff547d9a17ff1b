"""The allocated peak of every micro-batch size, from one trace.

Live bytes after operation i are a_i + c_i b at a micro-batch size b, since every storage is
constant or linear in b. The peak is the maximum over the operations, a convex function with a few
straight pieces; a line through peaks of small sizes lies below it further out, and is never used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import NamedTuple, TypeAlias

from autotune.cost.memory.trace import (
    KINDS,
    NO_BYTES,
    Event,
    Kind,
    Phase,
    Size,
    StepTrace,
)

_Line: TypeAlias = tuple[float, float, int]
"""Slope, constant, and the place of an event."""

MOST_SAMPLES = 2**20
"""Micro-batch sizes are not looked at beyond this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is alive right after an allocation."""

    size: Size
    """All of it."""
    phase: Phase
    module: str
    operator: str
    by_kind: Mapping[Kind, Size]
    most: Size | None = None
    """All of it where what was allocated last grows no more; None where that does not happen."""

    def at(self, micro_batch_size: int) -> int:
        """Bytes at a micro-batch size."""
        num_bytes = self.size.at(micro_batch_size)
        return num_bytes if self.most is None else min(num_bytes, self.most.at(micro_batch_size))

    def plus(self, size: Size, kind: Kind) -> Moment:
        """The same moment with more alive."""
        kinds = dict(self.by_kind)
        kinds[kind] = add(kinds.get(kind, NO_BYTES), size)
        most = None if self.most is None else add(self.most, size)
        return replace(self, size=add(self.size, size), by_kind=kinds, most=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most that is alive at once at one micro-batch size."""

    num_bytes: int
    phase: Phase
    """Where the peak stands."""
    module: str
    """Path of the module it stands in; empty for the whole model."""
    operator: str
    by_kind: Mapping[Kind, int]
    """What it consists of; adds up to `num_bytes`, up to rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Allocated bytes at the peak, as a function of the micro-batch size."""

    moments: tuple[Moment, ...]
    """Those that are the peak at some size, by ascending slope."""
    one_row: Law | None = None
    """The law of a single row, where that does something else than more rows do."""

    def peak(self, micro_batch_size: int) -> Peak:
        """The peak at a micro-batch size, with what it consists of."""
        if micro_batch_size == 1 and self.one_row is not None:
            return self.one_row.peak(1)
        moment = max(self.moments, key=lambda m: m.at(micro_batch_size))
        num_bytes = moment.at(micro_batch_size)
        by_kind = {kind: moment.by_kind.get(kind, NO_BYTES).at(micro_batch_size) for kind in KINDS}
        # What stops to grow goes again where it came.
        by_kind["temporary"] -= moment.size.at(micro_batch_size) - num_bytes
        return Peak(
            num_bytes=num_bytes,
            phase=moment.phase,
            module=moment.module,
            operator=moment.operator,
            by_kind=by_kind,
        )

    def peak_bytes(self, micro_batch_size: int) -> int:
        """Bytes at the peak at a micro-batch size."""
        if micro_batch_size == 1 and self.one_row is not None:
            return self.one_row.peak_bytes(1)
        return max(m.at(micro_batch_size) for m in self.moments)

    def largest(self, limit_bytes: int, most: int = MOST_SAMPLES) -> int:
        """The largest micro-batch size whose peak stays within a limit; 0 where none does.

        Args:
            limit_bytes: What may be allocated.
            most: No larger size is asked for.
        """
        size = most
        for moment in self.moments:
            lines = [moment.size] if moment.most is None else [moment.size, moment.most]
            size = min(size, max(_largest(line, limit_bytes, most) for line in lines))
        if size > 1:
            return size
        return int(self.peak_bytes(1) <= limit_bytes)

    def plus(self, size: Size, kind: Kind) -> Law:
        """The law where something more is alive all the time."""
        return Law(
            moments=tuple(moment.plus(size, kind) for moment in self.moments),
            one_row=self.one_row.plus(size, kind) if self.one_row is not None else None,
        )


class _Bent(NamedTuple):
    """What is alive after an allocation that stops to grow."""

    before: _Line
    after: _Line
    at: float
    """The micro-batch size where one goes over into the other."""


def training_law(trace: StepTrace, accumulation_steps: int) -> Law:
    """The law of training with so many micro-batches a step, from the second step on."""
    law = law_without_window(trace, accumulates=accumulation_steps > 1)
    return with_window(law, trace, accumulation_steps)


def law_without_window(trace: StepTrace, *, accumulates: bool) -> Law:
    """The law of training but for the micro-batches that wait.

    The first step makes the optimizer's state at its end, so that its peak is no higher. With
    accumulation, gradients live through the forward passes of all micro-batches but the first; a
    third micro-batch adds nothing to the second.
    """

    def of(micro_batch_size: int) -> Law:
        first, later = trace.micro_steps(micro_batch_size)
        return law_of(
            chain(
                static_events(trace),
                first,
                later if accumulates else (),
                trace.update,
            )
        )

    law = of(2)
    if trace.one_row is not None:
        law = replace(law, one_row=of(1))
    return law


def with_window(law: Law, trace: StepTrace, accumulation_steps: int) -> Law:
    """The law with all micro-batches of a step there from its beginning to its end."""
    for event in trace.window:
        size = event.size
        law = law.plus(
            Size(
                constant_bytes=size.constant_bytes * accumulation_steps,
                bytes_per_sample=size.bytes_per_sample * accumulation_steps,
            ),
            event.kind,
        )
    return law


def static_events(trace: StepTrace) -> Iterator[Event]:
    """Allocations of what is alive between two steps: weights, buffers, the optimizer's state."""
    freed = {event.storage for event in trace.first_update if event.is_free}
    state = (e for e in trace.first_update if not e.is_free and e.storage not in freed)
    return chain(trace.setup, state)


def static_sizes(trace: StepTrace) -> Mapping[Kind, Size]:
    """What is alive between two steps, by kind."""
    return _by_kind(static_events(trace))


def add(first: Size, second: Size) -> Size:
    """Both together."""
    return Size(
        constant_bytes=first.constant_bytes + second.constant_bytes,
        bytes_per_sample=first.bytes_per_sample + second.bytes_per_sample,
    )


def _largest(line: Size, limit_bytes: int, most: int) -> int:
    room = limit_bytes - line.constant_bytes
    if room < 0:
        return 0
    return math.floor(room / line.bytes_per_sample) if line.bytes_per_sample > 0 else most


def _by_kind(events: Iterable[Event]) -> Mapping[Kind, Size]:
    found: dict[Kind, Size] = {}
    for event in events:
        size = event.size
        if event.is_free:
            size = Size(
                constant_bytes=-size.constant_bytes, bytes_per_sample=-size.bytes_per_sample
            )
        found[event.kind] = add(found.get(event.kind, NO_BYTES), size)
    return found


def law_of(events: Iterable[Event]) -> Law:
    """The law of one pass over events: the moments that are the maximum at some size from 1 on."""
    log = tuple(events)
    lines: list[_Line] = []
    bent: list[_Bent] = []
    constant, per_sample = 0.0, 0.0
    for index, event in enumerate(log):
        size = event.size
        if event.is_free:
            constant -= size.constant_bytes
            per_sample -= size.bytes_per_sample
        else:
            constant += size.constant_bytes
            per_sample += size.bytes_per_sample
            line = (per_sample, constant, index)
            if size.most_bytes is None:
                lines.append(line)
            else:
                flat = (
                    per_sample - size.bytes_per_sample,
                    constant - size.constant_bytes + size.most_bytes,
                    index,
                )
                bent.append(_Bent(line, flat, _bend(size)))
    found = _upper(lines)
    if bent:
        # Between two bends, everything is a line.
        straight = [line for line in lines if line[2] in set(found)]
        ends = sorted({b.at for b in bent if 1 < b.at < math.inf})
        found = list(
            dict.fromkeys(
                index
                for start, end in pairwise((1.0, *ends, math.inf))
                for index in _upper(
                    [*straight, *(b.before if b.at >= end else b.after for b in bent)], start, end
                )
            )
        )
    return Law(moments=tuple(_moment(log, index) for index in found))


def _bend(size: Size) -> float:
    """The micro-batch size at which a storage stops to grow."""
    assert size.most_bytes is not None
    room = size.most_bytes - size.constant_bytes
    if size.bytes_per_sample <= 0:
        return math.inf if room >= 0 else 0.0
    return room / size.bytes_per_sample


def _upper(lines: Sequence[_Line], start: float = 1.0, end: float = math.inf) -> list[int]:
    """Which of the lines (slope, constant, index) are the highest somewhere in a range, by slope.

    Going out from its start, the highest line gives way to the one that crosses it first.
    """
    best: dict[float, tuple[float, int]] = {}
    for slope, constant, index in lines:
        if slope not in best or best[slope][0] < constant:
            best[slope] = (constant, index)
    candidates = [(slope, constant, index) for slope, (constant, index) in best.items()]
    if not candidates:
        return []
    at = start
    current = max(candidates, key=lambda line: (line[1] + line[0] * at, line[0]))
    found = [current[2]]
    while True:
        crossings = [
            ((current[1] - constant) / (slope - current[0]), slope, constant, index)
            for slope, constant, index in candidates
            if slope > current[0]
        ]
        crossings = [crossing for crossing in crossings if at <= crossing[0] <= end]
        if not crossings:
            return found
        at, slope, constant, index = min(
            crossings, key=lambda crossing: (crossing[0], -crossing[1])
        )
        current = (slope, constant, index)
        found.append(index)


def _moment(log: Sequence[Event], index: int) -> Moment:
    event = log[index]
    kinds = _by_kind(log[: index + 1])
    size = NO_BYTES
    for part in kinds.values():
        size = add(size, part)
    last = event.size
    most = None
    if last.most_bytes is not None:
        most = Size(
            constant_bytes=size.constant_bytes - last.constant_bytes + last.most_bytes,
            bytes_per_sample=size.bytes_per_sample - last.bytes_per_sample,
        )
    return Moment(
        most=most,
        size=size,
        phase=event.phase,
        module=event.module,
        operator=event.operator,
        by_kind=kinds,
    )
