"""What the measured trials lead one to expect of the candidates that were not tried.

Expectations only choose the next trial; nothing is recommended by them, and none closes a
candidate. They lean to the hopeful side, so that a candidate is left out only with good reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotune.configuration import NO_CHECKPOINTING, Checkpointing, Configuration
from autotune.outcome import OutOfMemory
from autotune.search.evidence.finished import MeasuredTrial
from autotune.search.evidence.history import History

LEAST_RECOMPUTATION = 0.2
"""Time that checkpointing every layer adds at the least. Recomputing the forward pass of all
layers adds a third of forward and backward; embeddings, head and optimizer are not recomputed."""
LARGEST_OVERHEAD = 0.5
"""Part of a micro-batch's time that may not depend on its size, where only one size is known."""
LAYER_KEEPS = 0.1
"""Part of its activations that a checkpointed layer still keeps, where that was not tried."""
MEMORY_SLACK = 0.05
"""A candidate is expected not to fit only this far above what may be filled."""


def likely_candidates(history: History) -> tuple[Configuration, ...]:
    """Open candidates that are expected to fit; all open ones where none is."""
    arms = (history.arm(world_size) for world_size in history.space.world_sizes)
    return tuple(c for arm in arms for c in _likely_in(arm)) or history.open_candidates


def _likely_in(arm: History) -> Iterator[Configuration]:
    outlook = Outlook(arm) if arm.measured else None
    for candidate in arm.open_candidates:
        if outlook is None or outlook.may_fit(candidate):
            yield candidate


class Outlook:
    """Expected speed and memory of the candidates of one history.

    Args:
        history: One arm, with at least one measured trial.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.standing = history.standing
        leader = self.standing.fastest()
        if leader is None:
            raise ValueError("nothing was measured yet")
        self.leader: MeasuredTrial = leader
        """The fastest trial; all speeds are relative to it."""
        self._curve, self._costs = self._find_curve()
        self._need = _Need.of(history)

    def column(self, form: Checkpointing) -> dict[int, MeasuredTrial]:
        """Measured trials of one form by micro-batch size, ascending."""
        return dict(
            sorted(
                (t.configuration.micro_batch_size, t)
                for t in self.history.measured
                if t.configuration.checkpointing == form
            )
        )

    def open(self, form: Checkpointing) -> list[Configuration]:
        """Candidates of one form that may be tried, by ascending size."""
        return [c for c in self.history.open_candidates if c.checkpointing == form]

    def speed(self, candidate: Configuration, *, farthest_size: int | None = None) -> float:
        """Expected speed relative to the fastest trial.

        Args:
            candidate: What it is expected of.
            farthest_size: No more is expected of larger micro-batches than of this size.
        """
        form, size = candidate.checkpointing, candidate.micro_batch_size
        return self._curve.at(min(size, farthest_size or size)) / self._costs[form]

    @property
    def knows_speed_without_checkpointing(self) -> bool:
        """Whether a trial without checkpointing was measured, or none can be any more."""
        return bool(self.column(NO_CHECKPOINTING)) or not self.open(NO_CHECKPOINTING)

    @property
    def knows_memory(self) -> bool:
        """Whether a trace or the trials tell how memory grows."""
        return self._need is not None or self.history.foresight is not None

    def may_fit(self, candidate: Configuration) -> bool:
        """Whether nothing leads one to expect that it runs out of memory."""
        usable_bytes = self.history.usable_bytes
        foreseen = self.history.need(candidate)
        if foreseen is not None and usable_bytes is not None:
            return foreseen.total_bytes <= usable_bytes
        if self._need is not None and usable_bytes is not None:
            expected_bytes = self._need.at(self.history, candidate)
            return expected_bytes <= usable_bytes * (1 + MEMORY_SLACK)
        too_much = [
            _kept_samples(self.history, t.configuration)
            for t in self.history.trials
            if isinstance(t.outcome, OutOfMemory) and not self.history.is_outgrown(t)
        ]
        return _kept_samples(self.history, candidate) < min(too_much, default=math.inf)

    def is_sure_to_fit(self, candidate: Configuration) -> bool:
        """Whether it is predicted to fit, or keeps no more than a measured trial did."""
        if self.history.need(candidate) is not None:
            return self.may_fit(candidate)
        return _kept_samples(self.history, candidate) <= max(
            _kept_samples(self.history, t.configuration)
            for t in self.history.measured
            if t.configuration.checkpointing in self.history.space.forms
        )

    def _find_curve(self) -> tuple[_Curve, dict[Checkpointing, float]]:
        """Speeds over the sizes in the form with most readings, and what other forms cost on top.

        What a form costs is read where both were measured at the same size; elsewhere it is the
        least that is known. Readings of other forms fill in the sizes that the first one lacks.
        """
        forms = self.history.space.forms
        speeds = {
            form: {s: self.standing.ratio(t, self.leader).value for s, t in column.items()}
            for form in forms
            if (column := self.column(form))
        }
        if not speeds:
            return _Curve({self.leader.configuration.micro_batch_size: 1.0}), dict.fromkeys(
                forms, 1.0
            )
        best_form = self.leader.configuration.checkpointing
        reference = max(speeds, key=lambda form: (len(speeds[form]), form == best_form))
        curve = dict(speeds[reference])
        costs: dict[Checkpointing, float] = {}
        floor = 0.0
        for form in forms:
            cost = _least_cost(form) / _least_cost(reference)
            shared = speeds[reference].keys() & speeds.get(form, {}).keys()
            if shared:
                cost = min(speeds[reference][s] / speeds[form][s] for s in shared)
                floor = max(floor, cost)
            costs[form] = max(floor, cost)
            for size, speed in speeds.get(form, {}).items():
                if size not in speeds[reference]:
                    curve[size] = max(curve.get(size, 0.0), speed * costs[form])
        return _Curve(dict(sorted(curve.items()))), costs


def _least_cost(form: Checkpointing) -> float:
    return 1 + LEAST_RECOMPUTATION / form.every_n_layers if form.every_n_layers else 1.0


@dataclass(frozen=True, slots=True)
class _Curve:
    """Speeds over the micro-batch sizes."""

    speeds: Mapping[int, float]
    """By size, ascending; not empty."""

    def at(self, size: int) -> float:
        if size in self.speeds:
            return self.speeds[size]
        sizes = list(self.speeds)
        if len(sizes) == 1:
            return self._beyond_one(sizes[0], size)
        if size > sizes[-1]:
            return self._beyond(sizes[-2], sizes[-1], size)
        if size < sizes[0]:
            return self._beyond(sizes[1], sizes[0], size)
        near = sorted(sizes, key=lambda s: abs(math.log(s / size)))[:3]
        return _through([(math.log(s), self.speeds[s]) for s in near], math.log(size))

    def _beyond(self, inner: int, outer: int, size: int) -> float:
        """Time per sample = a + b / size through the outermost two, neither below zero."""
        inner_s, outer_s = 1 / self.speeds[inner], 1 / self.speeds[outer]
        overhead = max(0.0, (inner_s - outer_s) / (1 / inner - 1 / outer))
        # More than twice as fast at twice the size: all of the time is overhead, and no more.
        overhead = min(overhead, outer_s * outer)
        return 1 / (outer_s + overhead * (1 / size - 1 / outer))

    def _beyond_one(self, only: int, size: int) -> float:
        """By one size nothing is known of the others: a good part of it may be overhead."""
        share = LARGEST_OVERHEAD if size > only else 0.0
        return self.speeds[only] / (1 - share + share * only / size)


def _through(points: list[tuple[float, float]], x: float) -> float:
    """The polynomial through the points, at `x` (Lagrange)."""
    total = 0.0
    for i, (x_i, y_i) in enumerate(points):
        weight = 1.0
        for j, (x_j, _) in enumerate(points):
            if j != i:
                weight *= (x - x_j) / (x_i - x_j)
        total += weight * y_i
    return total


@dataclass(frozen=True, slots=True)
class _Need:
    """Memory over what is kept for the backward pass, in samples without checkpointing."""

    kept: float
    num_bytes: int
    bytes_per_sample: float

    @classmethod
    def of(cls, history: History) -> _Need | None:
        """Through the two trials that keep most; None where there are not two."""
        points = {
            _kept_samples(history, t.configuration): t.total_bytes
            for t in history.measured
            if t.configuration.accumulation_steps > 1
        }
        if len(points) < 2:
            return None
        near, far = sorted(points)[-2:]
        rise = (points[far] - points[near]) / (far - near)
        return cls(far, points[far], max(0.0, rise))

    def at(self, history: History, candidate: Configuration) -> float:
        spared = history.gradient_bytes if candidate.accumulation_steps == 1 else 0
        extra = _kept_samples(history, candidate) - self.kept
        return self.num_bytes + self.bytes_per_sample * extra - spared


def _kept_samples(history: History, candidate: Configuration) -> float:
    space = history.space
    every = candidate.checkpointing.every_n_layers
    if space.kept_fractions:
        fraction = space.kept_fractions[history.form_index(candidate)]
    else:
        fraction = 1 - (1 - LAYER_KEEPS) / every if every else 1.0
    return fraction * candidate.micro_batch_size
