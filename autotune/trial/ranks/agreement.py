"""One agreed answer of several ranks: the slowest decides, and so does whichever ran out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from autotune.outcome import (
    Distances,
    Exchange,
    Failed,
    Interlude,
    MemoryUse,
    OutOfMemory,
    Speed,
    Stopped,
    TimedOut,
)
from autotune.trial.protocol import (
    CannotLoad,
    GradientsMeasured,
    LinkMeasured,
    MemoryMeasured,
    Ready,
    Reply,
    SpeedMeasured,
)

RankReply = Reply | TimedOut | Stopped
"""What one rank has to say about a command."""
T = TypeVar("T")

_BROKEN_LINK = (
    "Another rank is gone",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "Timed out waiting",
    "NCCL",
)
"""Words of a rank whose partner is gone: what the partner says is the reason."""


def is_reading(reply: RankReply) -> bool:
    """Whether a rank did what it was asked to; where one did not, the others cannot go on."""
    return isinstance(
        reply, Ready | MemoryMeasured | SpeedMeasured | GradientsMeasured | LinkMeasured
    )


def agreed(replies: Sequence[RankReply]) -> RankReply:
    """The one answer of all ranks.

    Memory that ran out on any rank is the outcome of all; then a failure, and of several the one
    that is not merely the loss of another rank; then a time limit. Measurements are joined: the
    times are those of the rank that took longest, the samples those of all.

    Args:
        replies: One of each rank, in their order.

    Raises:
        ValueError: The ranks did not answer the same command.
    """
    for kind in (CannotLoad, OutOfMemory, Failed, TimedOut, Stopped):
        found = [(rank, reply) for rank, reply in enumerate(replies) if isinstance(reply, kind)]
        if found:
            return _told(*min(found, key=_weight))
    if _all_are(replies, MemoryMeasured):
        return _memory([r for r in replies if isinstance(r, MemoryMeasured)])
    if _all_are(replies, SpeedMeasured):
        return _speed([r for r in replies if isinstance(r, SpeedMeasured)])
    if _all_are(replies, Ready):
        return _ready([r for r in replies if isinstance(r, Ready)])
    if len({type(reply) for reply in replies}) == 1:
        return replies[0]
    raise ValueError(f"The ranks answered differently: {[reply.kind for reply in replies]}.")


def _all_are(replies: Sequence[RankReply], kind: type) -> bool:
    return all(isinstance(reply, kind) for reply in replies)


def _weight(found: tuple[int, RankReply]) -> tuple[bool, bool, bool, int]:
    """Sorts the answer that tells most first."""
    rank, reply = found
    is_uncertain = isinstance(reply, OutOfMemory) and not reply.is_certain
    is_echo = isinstance(reply, Failed) and any(word in reply.cause for word in _BROKEN_LINK)
    is_killed = isinstance(reply, Failed) and reply.is_killed
    return is_uncertain, is_echo, not is_killed, rank


def _told(rank: int, reply: RankReply) -> RankReply:
    """The answer, with the rank that it comes from."""
    if isinstance(reply, Failed | OutOfMemory | TimedOut):
        return replace(reply, cause=f"On rank {rank}: {reply.cause}")
    return reply


def _memory(replies: Sequence[MemoryMeasured]) -> MemoryMeasured:
    """The rank that needs most decides."""
    most: MemoryUse = max((r.memory for r in replies), key=lambda memory: memory.total_bytes)
    return MemoryMeasured(
        memory=most,
        steps_s=max(r.steps_s for r in replies),
        interlude=_interlude([r.interlude for r in replies if r.interlude is not None]),
    )


def _interlude(tried: Sequence[Interlude]) -> Interlude | None:
    """What the rank that needs most occupied; what one rank could not do was not done."""
    if not tried:
        return None
    needs = [t.evaluation_bytes for t in tried if t.evaluation_bytes is not None]
    return Interlude(
        evaluation_batch_size=max(t.evaluation_batch_size for t in tried),
        evaluation_bytes=max(needs) if len(needs) == len(tried) else None,
        is_saved=all(t.is_saved for t in tried),
        faults=tuple(dict.fromkeys(fault for t in tried for fault in t.faults)),
    )


def _speed(replies: Sequence[SpeedMeasured]) -> SpeedMeasured:
    speeds = [r.speed for r in replies if r.speed is not None]
    slowest = max(replies, key=lambda r: r.steps_s)
    marks = [r.high_water_bytes for r in replies if r.high_water_bytes is not None]
    exchanges = [r.exchange for r in replies if r.exchange is not None]
    return SpeedMeasured(
        speed=_joined(speeds) if len(speeds) == len(replies) else None,
        phases=slowest.phases,
        steps_s=slowest.steps_s,
        high_water_bytes=max(marks, default=None),
        exchange=_exchange(exchanges) if len(exchanges) == len(replies) else None,
        distances=_distances([r.distances for r in replies]),
    )


def _joined(speeds: Sequence[Speed]) -> Speed:
    """Times of the rank that took longest over the steps, samples and tokens of all ranks."""
    if len({len(speed.step_times_s) for speed in speeds}) > 1:
        raise ValueError("The ranks made different numbers of steps.")
    slowest = max(speeds, key=lambda speed: sum(speed.step_times_s))
    losses = []
    for step in zip(*(speed.losses for speed in speeds), strict=True):
        known = [loss for loss in step if loss is not None]
        losses.append(sum(known) / len(known) if len(known) == len(step) else None)
    return replace(
        slowest,
        step_samples=tuple(map(sum, zip(*(s.step_samples for s in speeds), strict=True))),
        step_tokens=tuple(map(sum, zip(*(s.step_tokens for s in speeds), strict=True))),
        losses=tuple(losses),
    )


def _exchange(exchanges: Sequence[Exchange]) -> Exchange:
    """The slowest rank decides; all send the same bytes in the same collectives."""
    compute_s = max(e.compute_s for e in exchanges)
    ddp_step_s = max(e.ddp_step_s for e in exchanges)
    return replace(
        exchanges[0],
        compute_s=compute_s,
        ddp_step_s=ddp_step_s,
        exposed_s=max(0.0, ddp_step_s - compute_s),
        averaging_s=max(e.averaging_s for e in exchanges),
        interfaces=tuple(name for e in exchanges for name in e.interfaces),
    )


def _distances(found: Sequence[Distances | None]) -> Distances | None:
    """The mean of what the ranks saw; None where they did not see the same averagings."""
    known = [distances for distances in found if distances is not None]
    if len(known) < len(found) or len({len(one.apart_squared) for one in known}) != 1:
        return None
    apart = zip(*(one.apart_squared for one in known), strict=True)
    return replace(known[0], apart_squared=tuple(sum(each) / len(known) for each in apart))


def _ready(replies: Sequence[Ready]) -> Ready | CannotLoad:
    """All ranks must have loaded the same job."""
    first = replies[0].facts
    for rank, reply in enumerate(replies):
        facts = reply.facts
        for what, own, other in (
            ("rows of training data", first.num_rows, facts.num_rows),
            ("parameters", first.num_parameters, facts.num_parameters),
            ("the model", first.model_class, facts.model_class),
            ("library versions", dict(first.versions), dict(facts.versions)),
            ("the job", first.digest, facts.digest),
        ):
            if own != other:
                return CannotLoad(
                    error="WorkloadError",
                    cause=f"Rank {rank} loaded another job than rank 0: {what} differ, {own} "
                    f"against {other}.",
                    remedy="Give every rank the same model, data and library versions.",
                )
    return replace(replies[0], load_s=max(reply.load_s for reply in replies))
