"""Several ways to train held against each other: samples per second times sample efficiency.

Ways differ in the number of processes, in accumulation, in local SGD steps and in the global batch
size; one process alone is a way like any other. Which one it is, confirmation finds out in
interleaved rounds. Here stand what learning adds to such a comparison, what counts as simpler where
a tie is left, and the words for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.configuration import Configuration
from autotune.cost.communication import MUCH_MORE, Rate, times
from autotune.cost.learning import SampleEfficiency
from autotune.outcome import Interval
from autotune.units import format_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A configuration with its measured speed and what is known of its learning."""

    configuration: Configuration
    rate: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A way that was measured beside the chosen one and may be as good."""

    way: Way
    ratio: float
    """Its learning per second over the chosen one's."""
    ratio_interval: Interval


def learning_ratio(
    first: SampleEfficiency, second: SampleEfficiency, *, sizes: tuple[int, int], reference: int
) -> tuple[float, Interval]:
    """How many times what a sample of the second way teaches one of the first does.

    What is not known of the two is one and the same thing (the noise scale, the assumption on local
    SGD), so that both stand at the same end of it: at the lower end of either interval together, or
    at the upper end. Only where one global batch lies above the reference and the other below, the
    ends cross, since a noise scale that is worse for the one is better for the other.

    Args:
        first: The one that is held against the other.
        second: The other.
        sizes: Global batch size of either.
        reference: The one that efficiencies are relative to.

    Returns:
        The ratio and its interval, which holds it.
    """
    value = first.value / second.value
    (low, high), (other_low, other_high) = first.interval, second.interval
    sides = {math.copysign(1, size - reference) for size in sizes if size != reference}
    if len(sides) > 1:
        ends = [low / other_high, high / other_low]
    else:
        ends = [low / other_low, high / other_high]
    return value, (min(value, *ends), max(value, *ends))


def simplicity(configuration: Configuration) -> tuple[bool, int]:
    """Sorts what is simpler first: plain data parallel before local SGD, then fewer processes."""
    return configuration.local_sgd_steps > 1, configuration.world_size


def explain(chosen: Way, ways: Sequence[Way], rival: Rival | None = None) -> tuple[str, ...]:
    """Why it is this way, with speed, efficiency and product apart.

    Args:
        chosen: The one that is recommended.
        ways: All that were measured, the chosen one among them.
        rival: The one with a higher product that is not shown to be better, if there is one.
    """
    rate = chosen.rate
    product = f"{format_rate(rate.useful_samples_per_s)} useful samples/s"
    if rate.efficiency.basis != "not needed":
        low, high = rate.useful_interval
        product += f" ({format_rate(low)} to {format_rate(high)})"
    sentences = [
        f"{chosen.configuration}: {format_rate(rate.samples_per_s)} samples/s × sample efficiency "
        f"{rate.efficiency} = {product}."
    ]
    if rival is not None:
        low, high = rival.ratio_interval
        sentences.append(
            f"{rival.way.configuration} comes to {times(rival.ratio)} times as much, which is "
            f"inside what is not known ({times(low)} to {times(high)}); the tie goes to "
            f"{_why(chosen.configuration, rival.way.configuration)}."
        )
    return (*sentences, *_distributing(chosen, ways))


def _why(chosen: Configuration, rival: Configuration) -> str:
    if rival.local_sgd_steps > 1 and chosen.local_sgd_steps == 1:
        if chosen.world_size == 1:
            return "one process, which needs no averaging"
        return "plain data parallel training"
    if chosen.world_size < rival.world_size:
        return "fewer processes"
    return "the one that leaves more memory free"


def _distributing(chosen: Way, ways: Sequence[Way]) -> list[str]:
    """Whether several processes pay: the best of one, against the best of several."""

    def product(way: Way) -> float:
        return way.rate.useful_samples_per_s

    is_alone = chosen.configuration.world_size == 1
    others = [w for w in ways if (w.configuration.world_size == 1) != is_alone]
    other = max(others, key=product, default=None)
    if other is None:
        return []
    value = product(chosen) / product(other)
    if not is_alone:
        joint = "come to" if value >= MUCH_MORE else "come to only"
        num = chosen.configuration.world_size
        return [f"{num} processes {joint} {times(value)} times one alone ({other.configuration})."]
    num = other.configuration.world_size
    if value >= 1:
        return [
            f"One process alone is better than all {num} of them on this link: {times(value)} "
            f"times as good as {other.configuration}."
        ]
    return [
        f"{num} processes come to no more than {times(1 / value)} times one alone on this link, "
        "which is not surely more."
    ]
