"""What the trials of one run have shown so far, and which candidates that leaves open.

A history is immutable; `closing.with_trial` makes the next one. The same trials in the same order
give the same history, live or read from a journal.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from autotune.configuration import Configuration
from autotune.cost.decision import learning_ratio
from autotune.cost.learning import NOT_NEEDED, SampleEfficiency
from autotune.cost.memory.foresight import Foresight, Need
from autotune.outcome import Failed, Measured, OutOfMemory, Stopped, TimedOut
from autotune.search.evidence.finished import ClosedRegion, FinishedTrial, MeasuredTrial
from autotune.search.evidence.ranking import MEMORY_TIE_FRACTION, Standing, is_same_memory
from autotune.search.evidence.statistics import Ratio
from autotune.space import Space
from autotune.view import RunView

OUTGROWN_FRACTION = 0.9
"""A trial that ran out of memory under less than this of what may be filled now says nothing of
now. A limit taken from the free memory of the machine changes a little from engine to engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Finished trials of one run in the order in which they ended."""

    space: Space
    usable_bytes: int | None = None
    """What may be filled of the memory limit; None where it is not known, and then no candidate
    is closed by a prediction."""
    gradient_bytes: int = 0
    """Bytes of all gradients. They live through the next forward pass only where a step has more
    than one micro-batch, so that the whole batch at once may fit where half of it does not."""
    trials: tuple[FinishedTrial, ...] = ()
    regions: tuple[ClosedRegion, ...] = ()
    efficiencies: Mapping[int, SampleEfficiency] = field(default_factory=dict)
    """Sample efficiency by local SGD steps; 1 where it is not named."""
    batch_efficiencies: Mapping[int, SampleEfficiency] = field(default_factory=dict)
    """Sample efficiency by global batch size; 1 where it is not named."""
    required_local_sgd_steps: int | None = None
    """What the user insists on; None leaves it open."""
    foresight: Foresight | None = None
    """What is predicted of memory from a traced step; None where nothing is, or trials spoke
    against it."""
    held: frozenset[Configuration] = frozenset()
    """Candidates that other engines of a shared study try at this moment: known soon, not open."""

    @property
    def standing(self) -> Standing:
        """The measured trials, compared by samples per second and sample efficiency."""
        return self.standing_of(self.measured)

    def standing_of(self, trials: Iterable[MeasuredTrial]) -> Standing:
        """Some trials, one a configuration, compared likewise."""
        return Standing(trials, self._weight, negligible_bytes=self.negligible_bytes)

    @property
    def negligible_bytes(self) -> int:
        """A difference in memory that does not matter against what may be filled."""
        return round(MEMORY_TIE_FRACTION * (self.usable_bytes or 0))

    def is_same_memory(self, num_bytes: int, least_bytes: int) -> bool:
        """Whether a peak is the same as the least one, for a choice between the two."""
        return is_same_memory(num_bytes, least_bytes, self.negligible_bytes)

    def may_be_chosen(self, configuration: Configuration) -> bool:
        """Whether it is what the user insists on, if on anything."""
        required = self.required_local_sgd_steps
        return required is None or configuration.local_sgd_steps == required

    @property
    def leaders(self) -> tuple[MeasuredTrial, ...]:
        """The best trial, and the others that may be as good, in rank."""
        return self.leaders_without(())

    def leaders_without(self, unwanted: Container[Configuration]) -> tuple[MeasuredTrial, ...]:
        """The same where some configurations are out of the question.

        Args:
            unwanted: Them.
        """
        allowed = tuple(
            t
            for t in self.measured
            if self.may_be_chosen(t.configuration) and t.configuration not in unwanted
        )
        standing = Standing(allowed, self._weight, negligible_bytes=self.negligible_bytes)
        return standing.contenders(len(allowed))

    def efficiency(self, configuration: Configuration) -> SampleEfficiency:
        """How much a sample of a configuration teaches, against one of the baseline."""
        by_rounds = self.efficiencies.get(configuration.local_sgd_steps, NOT_NEEDED)
        by_size = self.batch_efficiencies.get(configuration.global_batch_size, NOT_NEEDED)
        return by_rounds.times(by_size)

    def weighs_differently(self, first: Configuration, second: Configuration) -> bool:
        """Whether a sample of one is held to teach more than one of the other."""
        return self.efficiency(first) != self.efficiency(second)

    def gain(self, speeds: Ratio, first: Configuration, second: Configuration) -> Ratio:
        """A ratio of speeds, weighed with what a sample of each teaches, as far as it is known.

        Args:
            speeds: How many times as fast the first is as the second.
            first: The one that is held against the other.
            second: The other.
        """
        value, (low, high) = learning_ratio(
            self.efficiency(first),
            self.efficiency(second),
            sizes=(first.global_batch_size, second.global_batch_size),
            reference=self.space.global_batch_size,
        )
        return Ratio(
            value=speeds.value * value,
            low=speeds.low * low,
            high=speeds.high * high,
            num_pairs=speeds.num_pairs,
        )

    def _weight(self, configuration: Configuration) -> float:
        return self.efficiency(configuration).value

    def arm(self, world_size: int, *, is_for_memory: bool = False) -> History:
        """The search with one number of ranks and without local SGD, as a history of its own.

        Memory and speed over the micro-batch size are alike within it alone.

        Args:
            world_size: Ranks.
            is_for_memory: Whether trials of another global batch size, which come after the
                search, belong to it: they tell of memory, and nothing of speed.
        """
        sizes = {candidate.global_batch_size for candidate in self.space.candidates}
        trials = tuple(
            t
            for t in self.trials
            if _is_of(t.configuration, world_size)
            and (is_for_memory or t.configuration.global_batch_size in sizes)
        )
        if len(trials) == len(self.trials) and self.space.world_sizes == (world_size,):
            return self
        leader = self.standing.best()
        like = leader.configuration if leader is not None else self.space.baseline
        kept = (
            replace(r, configurations=tuple(c for c in r.configurations if _is_of(c, world_size)))
            for r in self.regions
        )
        return replace(
            self,
            space=self.space.arm(world_size, like),
            trials=trials,
            regions=tuple(r for r in kept if r.configurations),
        )

    def of(self, configuration: Configuration) -> tuple[FinishedTrial, ...]:
        """All trials of one configuration."""
        return tuple(t for t in self.trials if t.configuration == configuration)

    def is_tried(self, configuration: Configuration) -> bool:
        """Whether the configuration needs no further trial: a known outcome is not launched again.

        A process that was killed once for an uncertain reason may be tried once more. A stopped
        trial says nothing, but somebody wanted it to end.
        """
        trials = [t for t in self.of(configuration) if not self.is_outgrown(t)]
        if len(trials) == 1:
            return not trials[0].may_be_repeated
        return bool(trials)

    def is_outgrown(self, trial: FinishedTrial) -> bool:
        """Whether a trial ran out of memory under a much smaller limit than there is now."""
        outcome = trial.outcome
        if not isinstance(outcome, OutOfMemory) or None in (outcome.limit_bytes, self.usable_bytes):
            return False
        needed_bytes = max(outcome.needed_at_least_bytes or 0, outcome.limit_bytes or 0)
        return needed_bytes < OUTGROWN_FRACTION * (self.usable_bytes or 0)

    def need(self, configuration: Configuration) -> Need | None:
        """What a configuration is predicted to need; None where only a trial can tell."""
        return None if self.foresight is None else self.foresight.need(configuration)

    def is_foreseen_to_pass_the_limit(self, configuration: Configuration) -> bool:
        """Whether it is predicted to need more than may be filled, so that it is never run."""
        need = self.need(configuration)
        if need is None or self.usable_bytes is None:
            return False
        return need.total_bytes > self.usable_bytes

    def closed_by(self, configuration: Configuration) -> ClosedRegion | None:
        """The region that the configuration was closed with."""
        return next((r for r in self.regions if configuration in r.configurations), None)

    def is_open(self, configuration: Configuration) -> bool:
        """Whether it is a candidate that may be tried."""
        return (
            configuration in self.space.candidates
            and configuration not in self.held
            and not self.is_tried(configuration)
            and self.closed_by(configuration) is None
        )

    @property
    def open_candidates(self) -> tuple[Configuration, ...]:
        """Candidates that may be tried, in the order of the space."""
        closed = {c for r in self.regions for c in r.configurations} | self.held
        return tuple(c for c in self.space.candidates if c not in closed and not self.is_tried(c))

    @property
    def measured(self) -> tuple[MeasuredTrial, ...]:
        """Measured trials of the search, one a configuration, that no later trial speaks against.

        A configuration that ran out of memory, failed or hung when it was confirmed is left out,
        and so is one that was measured under a larger limit and does not fit the present one. One
        whose process was killed from outside may be confirmed once more.
        """
        found: dict[Configuration, MeasuredTrial] = {}
        killed: set[Configuration] = set()
        for trial in self.trials:
            match trial.outcome:
                case Measured() if trial.is_search:
                    found[trial.configuration] = MeasuredTrial(
                        number=trial.number,
                        purpose=trial.purpose,
                        configuration=trial.configuration,
                        measured=trial.outcome,
                    )
                case OutOfMemory() if self.is_outgrown(trial):
                    pass
                case Failed(is_killed=True) if trial.configuration not in killed:
                    killed.add(trial.configuration)
                case OutOfMemory() | Failed() | TimedOut():
                    found.pop(trial.configuration, None)
                case _:
                    pass
        return tuple(
            t
            for t in found.values()
            if self.usable_bytes is None or t.total_bytes <= self.usable_bytes
        )

    @property
    def baseline(self) -> MeasuredTrial | None:
        """The measured trial of the user's present configuration."""
        return next((t for t in self.measured if t.configuration == self.space.baseline), None)

    @property
    def num_search_trials(self) -> int:
        """Trials of the search, by whomever they were run."""
        return sum(t.is_search for t in self.trials)

    @property
    def num_own_trials(self) -> int:
        """Trials of the search that this run ran itself: those that count against its budget."""
        return sum(t.is_search and t.origin is None for t in self.trials)

    def form_index(self, configuration: Configuration) -> int:
        """Place of its checkpointing form in the space, from the most memory kept to the least.

        Raises:
            ValueError: The space has no such form.
        """
        return self.space.forms.index(configuration.checkpointing)


def _is_of(configuration: Configuration, world_size: int) -> bool:
    return configuration.world_size == world_size and configuration.local_sgd_steps == 1


def measured_again(view: RunView) -> tuple[MeasuredTrial, ...]:
    """The trials of the confirmation, which trained side by side in fresh processes."""
    return tuple(
        MeasuredTrial(
            number=trial.number,
            purpose=trial.purpose,
            configuration=trial.configuration,
            measured=trial.measured,
        )
        for trial in view.trials
        if trial.purpose == "confirm" and trial.measured is not None
    )


def finished_trials(view: RunView, *, forget_stopped: bool = False) -> tuple[FinishedTrial, ...]:
    """The finished trials of a run as its journal tells them.

    Args:
        view: The folded journal.
        forget_stopped: Leave out trials that were stopped, so that they may be tried again.
    """
    return tuple(
        FinishedTrial(
            number=trial.number,
            purpose=trial.purpose,
            configuration=trial.configuration,
            outcome=trial.outcome,
            origin=trial.origin,
        )
        for trial in view.trials
        if trial.outcome is not None and not (forget_stopped and isinstance(trial.outcome, Stopped))
    )
