"""How sure a measured gain is: decided once, for screens, command line and report alike."""

from __future__ import annotations

import math

from autotune.events import Confirmed
from autotune.outcome import Interval

WIDE = 0.1
"""Half of an interval, relative to its middle, from which on it says little of how much is gained.
Confirmation aims at a fifth of that."""


def is_settled(confirmed: Confirmed) -> bool:
    """Whether what was measured again may be taken as it stands.

    Where nothing stood beside it, its own rate is all there is to be sure of.
    """
    is_alone = confirmed.baseline_number in (None, confirmed.number)
    interval = confirmed.samples_per_s_ci95 if is_alone else confirmed.speedup_ci95
    return confirmed.settled and not is_wide(interval)


def is_wide(interval: Interval) -> bool:
    """Whether the interval of a ratio leaves open how much is gained."""
    low, high = interval
    return not (low > 0 and math.isfinite(high) and math.sqrt(high / low) - 1 <= WIDE)


def holds_none(interval: Interval) -> bool:
    """Whether the interval of a ratio holds that there is no difference."""
    return interval[0] <= 1 <= interval[1]


def doubt(interval: Interval, *, settled: bool = True) -> str:
    """What stands beside a gain that its interval does not settle; empty beside another one.

    Args:
        interval: Of the ratio.
        settled: Whether confirmation went on until it was narrow.
    """
    if settled and not is_wide(interval):
        return "perhaps no difference" if holds_none(interval) else ""
    return "not settled, perhaps no difference" if holds_none(interval) else "not settled"
