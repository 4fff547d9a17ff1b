"""Watches how far apart ranks are when they average, beside the averaging and never inside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from autotune.outcome import Distances

MOST_ELEMENTS = 2**20
"""Numbers that are looked at; of a larger model every n-th one is, so that little is copied."""


class DriftWatch:
    """Distances of this rank's parameters from the mean, and of the mean from the one before.

    Both are sums over all that is trained, reckoned from an even sample of it.

    Args:
        parameters: What is averaged, as it is at the moment, always in the same order.
        most_elements: Size of the sample.
    """

    def __init__(
        self, parameters: Callable[[], Iterable[Tensor]], most_elements: int = MOST_ELEMENTS
    ) -> None:
        self._parameters = parameters
        num = sum(parameter.numel() for parameter in parameters())
        self._step = max(1, math.ceil(num / most_elements))
        self._own: Tensor | None = None
        self._mean: Tensor | None = None
        self._apart: list[float] = []
        self._moved: list[float] = []

    def before(self) -> None:
        """Looks at this rank's parameters, just before an averaging."""
        self._own = self._sample()

    def after(self) -> None:
        """Looks at the mean, just after the averaging; the first one only tells where it starts."""
        mean, before, own = self._sample(), self._mean, self._own
        self._mean, self._own = mean, None
        if before is None or own is None:
            return
        apart, moved = (self._step * _squared(mean - other) for other in (own, before))
        if math.isfinite(apart) and math.isfinite(moved):
            self._apart.append(apart)
            self._moved.append(moved)

    @property
    def distances(self) -> Distances | None:
        """What was seen on this rank; None where nothing was averaged after a round of steps."""
        if not self._apart:
            return None
        return Distances(apart_squared=tuple(self._apart), moved_squared=tuple(self._moved))

    @torch.no_grad()
    def _sample(self) -> Tensor:
        """Every n-th number of all parameters one after another, copied."""
        parts, position = [], 0
        for parameter in self._parameters():
            parts.append(parameter.flatten()[-position % self._step :: self._step].float())
            position += parameter.numel()
        return torch.cat(parts) if len(parts) > 1 else parts[0].clone()


def _squared(difference: Tensor) -> float:
    return float(difference.square().sum())
