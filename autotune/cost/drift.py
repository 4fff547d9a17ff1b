"""How far apart the ranks were before each averaging, said as what it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
    local_sgd_steps: int
    num_ranks: int
    num_averagings: int
    sentence: str

    @property
    def share(self) -> float | None:
        """How far apart the ranks were, in parts of the way that they went together."""
        return None if self.moved is None else self.apart / self.moved


def describe_drift(
    apart_squared: Sequence[float],
    moved_squared: Sequence[float],
    *,
    local_sgd_steps: int,
    num_ranks: int,
) -> Drift:
    """Sums up what was seen at several averagings.

    Ranks that step along independent noise are `V = mean_p |x_p - x̄|²` apart, which for SGD grows
    as `eta² · H · (1 - 1/P) · tr(Sigma) / b` (the discrepancy term in Wang and Joshi 2019, arXiv
    1810.08313): with the square of the learning rate. The mean of P ranks still holds a share
    `V / (P - 1)` of that noise, which is taken off the square of its way.

    Args:
        apart_squared: V at each averaging.
        moved_squared: `|x̄ - x̄ before|²` at each.
        local_sgd_steps: Optimizer steps between two averagings.
        num_ranks: At least 2.

    Raises:
        ValueError: There is no averaging, a different number of each, or a single rank.
    """
    if not apart_squared or len(apart_squared) != len(moved_squared) or num_ranks < 2:
        raise ValueError(
            f"{len(apart_squared)} distances, {len(moved_squared)} ways and {num_ranks} ranks make "
            "no drift."
        )
    spread = float(np.mean(apart_squared))
    way_squared = float(np.mean(moved_squared)) - spread / (num_ranks - 1)
    apart = math.sqrt(spread)
    moved = math.sqrt(way_squared) if way_squared > 0 else None
    against = (
        f"{apart / moved:.0%} of the {moved:.3g} that their mean went since the averaging before"
        if moved is not None
        else "and the way of their mean is not told from noise"
    )
    return Drift(
        apart=apart,
        moved=moved,
        local_sgd_steps=local_sgd_steps,
        num_ranks=num_ranks,
        num_averagings=len(apart_squared),
        sentence=f"After {local_sgd_steps} local steps the {num_ranks} ranks were {apart:.3g} from "
        f"their mean, {against} ({len(apart_squared)} averagings). This shows how far they drift, "
        "not what it costs, and falls with the learning rate.",
    )
