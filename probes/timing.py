"""Synchronised, repeated timing with its spread. Imports nothing that computes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from probes.machine import Reading, Unit

OUTLIER_RATIO = 1.5
"""A sample this much slower than the median means that something else ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long one call takes."""

    samples_s: tuple[float, ...]
    """Time of one call, a mean over `num_calls` calls each."""
    num_calls: int
    """Calls between two synchronisations."""

    @property
    def median_s(self) -> float:
        """Median of the samples."""
        return statistics.median(self.samples_s)

    @property
    def half_iqr_s(self) -> float:
        """Half the distance between the quartiles."""
        return half_iqr(self.samples_s)

    @property
    def note(self) -> str | None:
        """What the samples say of the machine's quiet; None if nothing."""
        slow = slow_samples(self.samples_s)
        return slow and f"{slow}: something else ran on the machine"

    def rate(self, name: str, unit: Unit, amount: float, note: str | None = None) -> Reading:
        """The reading of a call that moves or computes `amount` each time."""
        rates = tuple(amount / sample for sample in self.samples_s)
        notes = [text for text in (note, self.note) if text]
        return Reading(
            name=name,
            unit=unit,
            value=statistics.median(rates),
            samples=rates,
            half_iqr=half_iqr(rates),
            note="; ".join(notes) or None,
        )


def slow_samples(samples: tuple[float, ...]) -> str | None:
    """Says how many samples stand out; None where none does."""
    median = statistics.median(samples)
    num_slow = sum(sample > OUTLIER_RATIO * median for sample in samples)
    if not num_slow:
        return None
    return f"{num_slow} of {len(samples)} samples took over {OUTLIER_RATIO:g} times the median"


def half_iqr(samples: tuple[float, ...]) -> float:
    """Half the distance between the quartiles; 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    lower, _, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return (upper - lower) / 2


def time_call(
    call: Callable[[], object],
    *,
    synchronize: Callable[[], object] | None = None,
    num_warmup: int = 1,
    num_samples: int = 7,
    sample_s: float = 0.005,
    time_limit_s: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Times a call over and over.

    A call shorter than `sample_s` is repeated between two synchronisations until it fills one, so
    that neither the clock's steps nor the launch of a device's kernel decide.

    Args:
        call: What is timed.
        synchronize: Waits until the device has done what it was given; None where calls block.
        num_warmup: Calls before anything is timed.
        num_samples: Samples at most; fewer, but at least three, where the time runs out.
        sample_s: Length that one sample should have.
        time_limit_s: Time for all samples.
        clock: Seconds, counting up.
    """
    wait = synchronize or (lambda: None)

    def sample(num_calls: int) -> float:
        wait()
        start_s = clock()
        for _ in range(num_calls):
            call()
        wait()
        return (clock() - start_s) / num_calls

    for _ in range(num_warmup):
        call()
    began_s = clock()
    first_s = sample(1)
    num_calls = max(1, min(1000, round(sample_s / first_s))) if first_s > 0 else 1000
    samples = [] if num_calls > 1 else [first_s]
    while len(samples) < num_samples:
        if len(samples) >= 3 and clock() - began_s > time_limit_s:
            break
        samples.append(sample(num_calls))
    return Timing(samples_s=tuple(samples), num_calls=num_calls)
