"""Which measured configuration is best, and which others are worth a look.

Speed is compared batch by batch, and weighed with how much a sample teaches. Differences inside the
noise are ties, and a tie goes to the configuration that leaves more memory free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autotune.configuration import Configuration
from autotune.search.evidence.finished import MeasuredTrial
from autotune.search.evidence.statistics import Levels, Ratio
from autotune.space import distance
from autotune.units import format_bytes, format_change

ALTERNATIVE_FRACTION = 0.05
"""How much of the speed an alternative may give up."""
CONTENDER_FRACTION = 0.05
"""Readings this close to the best may be the better ones: on a shared machine two trials of the
same configuration differ by some per cent, which the steps of one trial do not show."""
MEMORY_TIE_FRACTION = 0.01
"""Peaks closer than this part of the smaller one, or of what may be filled, are the same memory."""

AlternativeKind: TypeAlias = Literal["fastest", "least memory", "closest to the baseline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another configuration that somebody may prefer, and why."""

    kind: AlternativeKind
    trial: MeasuredTrial
    reason: str


def is_same_memory(num_bytes: int, least_bytes: int, negligible_bytes: int) -> bool:
    """Whether a peak is the same as the least one, for a choice between the two.

    Args:
        num_bytes: The peak.
        least_bytes: The least one.
        negligible_bytes: A difference that does not matter.
    """
    return num_bytes - least_bytes <= max(MEMORY_TIE_FRACTION * least_bytes, negligible_bytes)


class Standing:
    """Measured trials, compared with each other over the batches that they share.

    Args:
        trials: One a configuration.
        efficiency: Sample efficiency of a configuration; every sample counts alike without it.
        negligible_bytes: A difference in memory that does not matter.
    """

    def __init__(
        self,
        trials: Iterable[MeasuredTrial],
        efficiency: Callable[[Configuration], float] = lambda configuration: 1.0,
        *,
        negligible_bytes: int = 0,
    ) -> None:
        self.trials = tuple(trials)
        self._efficiency = efficiency
        self._negligible_bytes = negligible_bytes
        self._place = {trial.number: place for place, trial in enumerate(self.trials)}
        self._levels = Levels([trial.measured.speed for trial in self.trials])

    def ratio(self, first: MeasuredTrial, second: MeasuredTrial) -> Ratio:
        """How many times as fast `first` trains as `second`: samples per second by efficiency."""
        speeds = self._levels.ratio(self._place[first.number], self._place[second.number])
        return speeds.times(
            self._efficiency(first.configuration) / self._efficiency(second.configuration)
        )

    def fastest(self, trials: Iterable[MeasuredTrial] | None = None) -> MeasuredTrial | None:
        """The fastest of `trials`, or of all; ties are not considered."""
        leader: MeasuredTrial | None = None
        for trial in self.trials if trials is None else trials:
            if leader is None or self.ratio(trial, leader).value > 1:
                leader = trial
        return leader

    def best(self, trials: Iterable[MeasuredTrial] | None = None) -> MeasuredTrial | None:
        """The fastest trial, or of those that tie with it the one that leaves most memory free.

        Where memory ties as well, the faster one.
        """
        considered = self.trials if trials is None else tuple(trials)
        leader = self.fastest(considered)
        if leader is None:
            return None
        tied = [t for t in considered if self.ratio(t, leader).is_tie]
        least_bytes = min(t.total_bytes for t in tied)
        return self.fastest(
            t for t in tied if is_same_memory(t.total_bytes, least_bytes, self._negligible_bytes)
        )

    def rank(self) -> tuple[MeasuredTrial, ...]:
        """All trials from the best to the worst."""
        left, ranked = list(self.trials), []
        while (leader := self.best(left)) is not None:
            ranked.append(leader)
            left.remove(leader)
        return tuple(ranked)

    def contenders(self, num: int = 3) -> tuple[MeasuredTrial, ...]:
        """The best, and the next in rank that a further measurement may put before it.

        The interval of their ratio to the best reaches 1, or they are nearly as fast. The best
        comes first; there are at most `num`.
        """
        ranked = self.rank()
        return ranked[:1] + tuple(t for t in ranked[1:] if self._may_win(t, ranked[0]))[: num - 1]

    def _may_win(self, trial: MeasuredTrial, best: MeasuredTrial) -> bool:
        ratio = self.ratio(trial, best)
        return ratio.high >= 1 or ratio.value >= 1 - CONTENDER_FRACTION

    def alternatives(
        self, chosen: MeasuredTrial, baseline: Configuration
    ) -> tuple[Alternative, ...]:
        """The fastest, the one with least memory, and the one closest to the baseline.

        The last two are at most 5 % slower than the fastest. Any of them may be the chosen one.

        Args:
            chosen: The recommended trial.
            baseline: The user's present configuration.
        """
        leader = self.fastest()
        if leader is None:
            return ()
        near = [t for t in self.trials if self.ratio(t, leader).value >= 1 - ALTERNATIVE_FRACTION]
        frugal = min(near, key=lambda t: (t.total_bytes, -t.measured.samples_per_s))
        familiar = min(near, key=lambda t: distance(t.configuration, baseline))
        return (
            self.alternative("fastest", leader, chosen, baseline),
            self.alternative("least memory", frugal, chosen, baseline),
            self.alternative("closest to the baseline", familiar, chosen, baseline),
        )

    def alternative(
        self,
        kind: AlternativeKind,
        trial: MeasuredTrial,
        chosen: MeasuredTrial,
        baseline: Configuration,
    ) -> Alternative:
        """One of them: what it gives and takes against the chosen one, by these trials."""
        near = f"within {ALTERNATIVE_FRACTION:.0%} of the fastest"
        what = {
            "fastest": "has the highest rate measured",
            "least memory": f"needs the least memory {near}",
            "closest to the baseline": f"is the closest to the present configuration {near}",
        }[kind]
        if trial.number == chosen.number:
            return Alternative(kind=kind, trial=trial, reason=f"The recommendation {what}.")
        subject = "The present configuration" if trial.configuration == baseline else "It"
        if trial.configuration == baseline and kind == "closest to the baseline":
            what = f"is itself {near}"
        ratio = self.ratio(trial, chosen)
        change = f"{format_change(ratio.value)} samples per second"
        noise = ", which is inside the noise" if ratio.is_tie else ""
        return Alternative(
            kind=kind,
            trial=trial,
            reason=f"{subject} {what}: {change} against the recommendation{noise}, and "
            f"{format_bytes(trial.total_bytes)} at the peak instead of "
            f"{format_bytes(chosen.total_bytes)}.",
        )
