"""The decision over everything measured: samples per second times sample efficiency.

Options differ in the number of processes, in accumulation, in local SGD steps and in the global
batch size. Whether distributing pays at all is no question apart: one process alone is an option
like any other. With a batch of B over P processes and B / P on one, several processes pay where
they keep more than

    (phi + B) / (P phi + B)

of P times the speed of one: the ratio of the two sample efficiencies, over P.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.configuration import Configuration
from autotune.cost.communication import MUCH_MORE, Rate, times
from autotune.outcome import Interval
from autotune.units import format_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A configuration with what is known of its speed and of its learning."""

    configuration: Configuration
    rate: Rate
    is_measured: bool
    """Whether the speed was measured; else it was predicted."""
    is_baseline: bool = False
    number: int | None = None
    """Of the trial that measured it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An option against the one that was decided for."""

    option: Option
    ratio: float
    """Its learning per second over that of the chosen one."""
    ratio_interval: Interval
    is_tie: bool
    """Whether it may be as good as the leader, for all that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The option to take, and how all others stand."""

    best: Option
    leader: Option
    """The one with the highest product, which ties may pass over."""
    standings: tuple[Standing, ...]
    """All options, by product, the highest first."""
    sentences: tuple[str, ...]
    """Why, with speed, efficiency and product apart."""


def least_share(noise_scale: float, global_batch_size: int, num_ranks: int) -> float:
    """The part of P times one process's speed that P processes must keep in order to pay.

    Args:
        noise_scale: Rows.
        global_batch_size: Of all processes together; one alone would train on a P-th of it.
        num_ranks: P.
    """
    if math.isinf(noise_scale):
        return 1 / num_ranks
    return (noise_scale + global_batch_size) / (num_ranks * noise_scale + global_batch_size)


def compare(first: Option, second: Option, reference: int) -> tuple[float, Interval]:
    """How many times the learning per second of `second` the one of `first` is.

    Errors of the two speeds are independent. What is not known of the efficiencies is one and the
    same thing for both (the noise scale, the assumption on local SGD), so that both stand at the
    same end of it: at the lower end of either interval together, or at the upper end. Only where
    one global batch lies above the reference and the other below, the ends cross, since a noise
    scale that is worse for the one is better for the other.

    Args:
        first: The one that is held against the other.
        second: The other.
        reference: The global batch size that efficiencies are relative to.

    Returns:
        The ratio and its interval.
    """
    a, b = first.rate, second.rate
    value = a.useful_samples_per_s / b.useful_samples_per_s
    if first == second:
        return 1.0, (1.0, 1.0)
    down = math.hypot(
        math.log(a.samples_per_s / a.samples_per_s_interval[0]),
        math.log(b.samples_per_s_interval[1] / b.samples_per_s),
    )
    up = math.hypot(
        math.log(a.samples_per_s_interval[1] / a.samples_per_s),
        math.log(b.samples_per_s / b.samples_per_s_interval[0]),
    )
    (a_low, a_high), (b_low, b_high) = a.efficiency.interval, b.efficiency.interval
    sides = [
        math.copysign(1, option.configuration.global_batch_size - reference)
        for option in (first, second)
        if option.configuration.global_batch_size != reference
    ]
    crosses = len({*sides}) > 1
    ends = [a_low / b_high, a_high / b_low] if crosses else [a_low / b_low, a_high / b_high]
    ends.append(a.efficiency.value / b.efficiency.value)
    speed = a.samples_per_s / b.samples_per_s
    return value, (speed * math.exp(-down) * min(ends), speed * math.exp(up) * max(ends))


def decide(options: Sequence[Option], *, reference: int) -> Decision:
    """Takes the option that learns most per second, and the simplest of those that tie with it.

    An option ties with the leader where the interval of their ratio reaches 1. Simpler is plain
    data parallel training before local SGD, then fewer processes, then the baseline; among equally
    simple ones the higher product wins.

    Args:
        options: Everything measured, and what was predicted.
        reference: The global batch size that efficiencies are relative to.

    Raises:
        ValueError: There is no option.
    """
    if not options:
        raise ValueError("There is nothing to decide between.")
    ranked = sorted(options, key=lambda option: -option.rate.useful_samples_per_s)
    leader = ranked[0]
    tied = [
        option
        for option in ranked
        if option is leader or compare(leader, option, reference)[1][0] <= 1
    ]
    best = min(tied, key=_complexity)
    standings = []
    for option in ranked:
        value, interval = compare(option, best, reference)
        standings.append(
            Standing(option=option, ratio=value, ratio_interval=interval, is_tie=option in tied)
        )
    return Decision(
        best=best,
        leader=leader,
        standings=tuple(standings),
        sentences=tuple(_sentences(best, leader, ranked, reference)),
    )


def _complexity(option: Option) -> tuple[bool, int, bool]:
    configuration = option.configuration
    return (configuration.local_sgd_steps > 1, configuration.world_size, not option.is_baseline)


def _sentences(best: Option, leader: Option, ranked: Sequence[Option], reference: int) -> list[str]:
    rate = best.rate
    found = "measured" if best.is_measured else "predicted"
    sentences = [
        f"{best.configuration}: {format_rate(rate.samples_per_s)} samples/s ({found}) × sample "
        f"efficiency {rate.efficiency} = {format_rate(rate.useful_samples_per_s)} useful samples/s."
    ]
    if leader is not best:
        value, (low, high) = compare(leader, best, reference)
        sentences.append(
            f"{leader.configuration} comes to {times(value)} times as much, which is inside what "
            f"is not known ({times(low)} to {times(high)}); the tie goes to {_why(best, leader)}."
        )
    sentences += _distributing(best, ranked, reference)
    return sentences


def _why(best: Option, leader: Option) -> str:
    if leader.configuration.local_sgd_steps > 1 and best.configuration.local_sgd_steps == 1:
        if best.configuration.world_size == 1:
            return "one process, which needs no averaging"
        return "plain data parallel training"
    if best.configuration.world_size < leader.configuration.world_size:
        return "fewer processes"
    return "the present configuration" if best.is_baseline else "the simpler one"


def _distributing(best: Option, ranked: Sequence[Option], reference: int) -> list[str]:
    """Whether several processes pay: the better of one, against the best of several."""
    alone = next((o for o in ranked if o.configuration.world_size == 1), None)
    together = next((o for o in ranked if o.configuration.world_size > 1), None)
    if alone is None or together is None:
        return []
    if best.configuration.world_size == 1:
        value, _ = compare(alone, together, reference)
        num = together.configuration.world_size
        if value >= 1:
            return [
                f"One process alone is better than all {num} of them on this link: {times(value)} "
                f"times as good as {together.configuration}."
            ]
        return [
            f"{num} processes come to no more than {times(1 / value)} times one alone on this "
            "link, which is not surely more."
        ]
    value, _ = compare(best, alone, reference)
    num = best.configuration.world_size
    joint = "come to" if value >= MUCH_MORE else "come to only"
    return [f"{num} processes {joint} {times(value)} times one alone ({alone.configuration})."]
