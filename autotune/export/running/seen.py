"""What was seen of a script on each rank, as plain data, and what all ranks together amount to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache

from pydantic import JsonValue, TypeAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one rank did."""

    world_size: int
    """Ranks that trained, as the script's own Accelerator counted them."""
    step_rows: tuple[tuple[int, ...], ...]
    """Rows of each micro-batch of each optimizer step."""
    losses: tuple[float, ...]
    """Loss of each optimizer step, as it went backward."""
    step_times_s: tuple[float, ...]
    """From the end of one optimizer step to the end of the next; the first is counted from its
    first forward pass."""
    exchanges: tuple[bool, ...]
    """Whether each step exchanged its gradients with the other ranks."""
    has_recomputed: bool
    """Whether any module was called during a backward pass."""
    recomputed_layers: tuple[bool, ...]
    """Of every layer that can be checkpointed, in their order, whether it was recomputed."""
    parameter_sum: float
    """Sum of the sizes of all parameters after the script."""
    extra: dict[str, JsonValue] = field(default_factory=dict)
    """What a hook found."""


@cache
def _adapter() -> TypeAdapter[Seen]:
    return TypeAdapter(Seen)


def as_json(seen: Seen) -> str:
    """One rank's account as text; a loss that is not finite stays what it is."""
    return json.dumps(asdict(seen))


def from_json(text: str) -> Seen:
    """Reads what `as_json` wrote."""
    return _adapter().validate_python(json.loads(text))


def slowest(ranks: Sequence[Seen]) -> Seen:
    """The rank that took longest over the steps after the first: all others wait for it."""
    return max(ranks, key=lambda seen: sum(seen.step_times_s[1:] or seen.step_times_s))


def rows(ranks: Sequence[Seen]) -> tuple[int, ...]:
    """Samples of each optimizer step over all ranks."""
    counts = [[sum(step) for step in seen.step_rows] for seen in ranks]
    return tuple(sum(step) for step in zip(*counts, strict=True))


def losses(ranks: Sequence[Seen]) -> tuple[float, ...]:
    """Loss of each optimizer step, the mean over the ranks."""
    steps = zip(*(seen.losses for seen in ranks), strict=True)
    return tuple(sum(step) / len(ranks) for step in steps)
