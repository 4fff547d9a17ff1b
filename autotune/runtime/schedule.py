"""After which optimizer steps ranks average."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingSchedule:
    """When ranks average: every so many optimizer steps, or more rarely as the rate falls."""

    local_sgd_steps: int
    """Optimizer steps between two averagings; the fewest, where `qsr_alpha` is given."""
    ddp_steps: int = 0
    """Optimizer steps of plain data parallel training before the first local one."""
    qsr_alpha: float | None = None
    """Steps grow with the inverse square of the learning rate, by this factor squared."""

    def next_after(
        self, step: int, *, learning_rate: float, is_rising: bool, last_step: int
    ) -> int:
        """The optimizer step after which ranks average next.

        Without `qsr_alpha` these are the multiples of `local_sgd_steps` after `ddp_steps`, so that
        the place in the training alone decides. With it, an averaging opens a round of
        max(H, floor((alpha / learning rate)²)) steps: the quadratic synchronisation rule of Gu et
        al., "A Quadratic Synchronization Rule for Distributed Deep Learning", 2024
        (arXiv 2310.14423). While the rate rises, in its warm-up, a round has H steps.

        Args:
            step: Optimizer steps made when the round opens.
            learning_rate: At that moment.
            is_rising: Whether the learning rate grows.
            last_step: Of the whole training; no round goes on beyond it.
        """
        step = max(step, self.ddp_steps)
        fewest = self.local_sgd_steps
        if self.qsr_alpha is None:
            return min(step + fewest - (step - self.ddp_steps) % fewest, last_step)
        if is_rising:
            return min(step + fewest, last_step)
        ratio = self.qsr_alpha / learning_rate if learning_rate > 0 else math.inf
        # A ratio that is whole but for rounding is meant to be whole.
        grown = math.floor(min(ratio * ratio, last_step) + 1e-9)
        return min(step + max(fewest, grown), last_step)
