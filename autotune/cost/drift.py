"""How far apart the ranks were before each averaging, said as what it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autotune.outcome import Distances


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Distances between the ranks' parameters just before an averaging.

    It says how much the ranks went their own ways. It is no sample efficiency: what that distance
    costs depends on the curvature of the loss, and a noise scale worked out of it came out several
    times too large at more than one local step.
    """

    apart: float
    """Root mean square distance of a rank's parameters from their mean."""
    moved: float | None
    """Distance that the mean went since the averaging before, what is noise taken off; None where
    it is not told from noise."""
    sentence: str


def describe_drift(distances: Distances, *, local_sgd_steps: int, num_ranks: int) -> Drift:
    """Sums up what was seen at several averagings.

    Ranks that step along independent noise are `V = mean_p |x_p - x̄|²` apart, which for SGD grows
    as `eta² · H · (1 - 1/P) · tr(Sigma) / b` (the discrepancy term in Wang and Joshi 2019, arXiv
    1810.08313): with the square of the learning rate. The mean of P ranks still holds a share
    `V / (P - 1)` of that noise, which is taken off the square of its way.

    Args:
        distances: V and `|x̄ - x̄ before|²` at each averaging.
        local_sgd_steps: Optimizer steps between two averagings.
        num_ranks: At least 2.

    Raises:
        ValueError: There is no averaging, or a single rank.
    """
    num = len(distances.apart_squared)
    if not num or num_ranks < 2:
        raise ValueError(f"{num} averagings of {num_ranks} ranks make no drift.")
    spread = float(np.mean(distances.apart_squared))
    way_squared = float(np.mean(distances.moved_squared)) - spread / (num_ranks - 1)
    apart = math.sqrt(spread)
    moved = math.sqrt(way_squared) if way_squared > 0 else None
    against = (
        f"{apart / moved:.0%} of the {moved:.3g} that their mean went since the averaging before"
        if moved is not None
        else "and the way of their mean is not told from noise"
    )
    plural = "s" if num > 1 else ""
    return Drift(
        apart=apart,
        moved=moved,
        sentence=f"After {local_sgd_steps} local steps the {num_ranks} ranks were {apart:.3g} from "
        f"their mean, {against} ({num} averaging{plural}). This shows how far they drift, not what "
        "it costs, and falls with the learning rate.",
    )
