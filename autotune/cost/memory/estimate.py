"""What fits on a device: micro-batch size × checkpointing, with every byte accounted for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.configuration import Checkpointing, divisors
from autotune.cost.memory.allocator import Replayed
from autotune.cost.memory.allocator_settings import AllocatorSettings
from autotune.cost.memory.law import Law, Peak, law_without_window, with_window
from autotune.cost.memory.outside import (
    Layer,
    averaging_bytes,
    buckets,
    outside,
    workspaces,
)
from autotune.cost.memory.question import LARGEST_SIZE, Question, table_sizes
from autotune.cost.memory.reserved import Run, gradient_bytes
from autotune.cost.memory.trace import Kind, StepTrace, TracedWorkload
from autotune.units import format_bytes

_GROWING: Mapping[Kind, str] = {
    "activations": "activations",
    "logits": "logits",
    "temporary": "temporary tensors",
}
"""What grows with the micro-batch size, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One micro-batch size under one checkpointing form."""

    micro_batch_size: int
    accumulation_steps: int | None
    """None where it was left open."""
    tensor_bytes: int
    """Peak of the step's tensors, as they ask for it."""
    reserved_bytes: int | None
    """What the allocator holds; None where the tensors alone are too many to go on."""
    total_bytes: int
    """What the process occupies; at least that much where `reserved_bytes` is None."""
    fits: bool
    why: str | None
    """Why it does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormEstimate:
    """All micro-batch sizes under one checkpointing form."""

    checkpointing: Checkpointing
    entries: tuple[Entry, ...]
    largest: int
    """Largest micro-batch size that fits; 0 where none does."""
    largest_with_expandable_segments: int | None
    """The same under `expandable_segments:True`; None where that is set, or changes nothing."""
    shown_size: int
    """The micro-batch size that the rest is told of: the largest, or 1 where none fits."""
    peak: Peak
    layers: tuple[Layer, ...]

    @property
    def total_bytes(self) -> int:
        """What the process occupies at `shown_size`."""
        return sum(layer.num_bytes for layer in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The whole answer."""

    traced: TracedWorkload
    question: Question
    forms: tuple[FormEstimate, ...]

    @property
    def best(self) -> FormEstimate | None:
        """The form with the least recomputation that fits anything; None where nothing fits."""
        return next((form for form in self.forms if form.largest), None)

    @property
    def leanest(self) -> FormEstimate:
        """The form that comes nearest to fitting one sample."""
        return min(self.forms, key=lambda form: form.entries[0].total_bytes)


def estimate(traced: TracedWorkload, question: Question) -> Estimate:
    """Reckons what fits.

    Args:
        traced: The step under every checkpointing form, at least one.
        question: The device and the job around the step.
    """
    reckoners = [FormReckoner(step, question) for step in traced.steps]
    largest = [form.largest(question.settings) for form in reckoners]
    sizes = table_sizes(question, max(largest))
    forms = tuple(form.told(sizes, size) for form, size in zip(reckoners, largest, strict=True))
    return Estimate(traced=traced, question=question, forms=forms)


class FormReckoner:
    """Reckons one checkpointing form, each micro-batch size once.

    Args:
        trace: The step under that form.
        question: The device and the job around the step.
    """

    def __init__(self, trace: StepTrace, question: Question) -> None:
        self._trace = trace
        self._question = question
        self._target = question.target
        ranks = replace(question.ranks, trained_bytes=gradient_bytes(trace))
        self._inside = (*workspaces(question.target), *buckets(ranks))
        self._outside = outside(question.target, ranks, process_bytes=question.process_bytes)
        self._averaging_bytes = averaging_bytes(ranks)
        self._laws: dict[int, Law] = {}
        """By accumulation steps."""
        self._laws_without_window: dict[bool, Law] = {}
        self._runs: dict[int, Run] = {}
        self._replayed: dict[tuple[int, bool], Replayed] = {}

    @property
    def outside_bytes(self) -> int:
        """What the process occupies that torch's allocator does not see."""
        return sum(layer.num_bytes for layer in self._outside)

    @property
    def _fixed_bytes(self) -> int:
        """What is there whatever the micro-batch size."""
        return self._inside_bytes + self.outside_bytes

    @property
    def _inside_bytes(self) -> int:
        return sum(layer.num_bytes for layer in self._inside)

    def law(self, micro_batch_size: int) -> Law:
        """The law for as many accumulation steps as a micro-batch size has."""
        steps = self._question.accumulation_steps(micro_batch_size)
        if steps not in self._laws:
            accumulates = steps > 1
            if accumulates not in self._laws_without_window:
                law = law_without_window(self._trace, accumulates=accumulates)
                self._laws_without_window[accumulates] = law
            law = self._laws_without_window[accumulates]
            self._laws[steps] = with_window(law, self._trace, steps)
        return self._laws[steps]

    def _run(self, accumulation_steps: int) -> Run:
        key = min(accumulation_steps, 2)
        if key not in self._runs:
            self._runs[key] = Run(
                self._trace,
                accumulation_steps=key,
                kept_bytes=[block for layer in self._inside for block in layer.blocks],
                passing_bytes=self._averaging_bytes,
            )
        return self._runs[key]

    def replayed(self, micro_batch_size: int, settings: AllocatorSettings) -> Replayed:
        """How the requests of a run go, all that lies inside the allocator among them."""
        if self._target.is_cpu:
            tensors = self.law(micro_batch_size).peak_bytes(micro_batch_size)
            inside = tensors + self._inside_bytes
            return Replayed(allocated_bytes=inside, reserved_bytes=inside, num_retries=0)
        key = (micro_batch_size, settings.expandable_segments)
        if key not in self._replayed:
            steps = self._question.accumulation_steps(micro_batch_size)
            self._replayed[key] = self._run(steps).at(
                micro_batch_size,
                settings,
                num_waiting=steps,
                device_bytes=self._target.total_bytes,
            )
        return self._replayed[key]

    def fits(self, micro_batch_size: int, settings: AllocatorSettings) -> bool:
        """Whether the process stays within what may be filled."""
        usable = self._question.usable_bytes
        if not self._tensors_fit(micro_batch_size):
            return False
        replayed = self.replayed(micro_batch_size, settings)
        is_met = replayed.refused_bytes is None
        return is_met and replayed.reserved_bytes + self.outside_bytes <= usable

    def largest(self, settings: AllocatorSettings) -> int:
        """The largest micro-batch size that fits; 0 where none does."""
        per_rank = self._question.per_rank
        if per_rank is not None:
            # Fewer accumulation steps may need less: the order says nothing of what fits.
            fitting = (d for d in reversed(divisors(per_rank)) if self.fits(d, settings))
            return next(fitting, 0)
        high = self._largest_of_tensors(self._question.usable_bytes)
        low, size = 0, high
        while low < high:
            if self.fits(size, settings):
                low = size
                size = (low + high + 1) // 2
            else:
                high = size - 1
                size = self._guess(size, low, high, settings)
        return low

    def _tensors_fit(self, size: int) -> bool:
        need = self.law(size).peak_bytes(size) + self._fixed_bytes
        return need <= self._question.usable_bytes

    def _largest_of_tensors(self, usable: int) -> int:
        """The largest size whose tensors alone leave room for what is fixed."""
        return self.law(1).largest(usable - self._fixed_bytes, LARGEST_SIZE)

    def _guess(self, tried: int, low: int, high: int, settings: AllocatorSettings) -> int:
        """The next size to try below one that does not fit.

        What gaps cost hardly changes from one size to the next, so that the size at which they
        would just fit is nearly the answer; half-way is tried where that is too far off.
        """
        middle = (low + high + 1) // 2
        if self._target.is_cpu or not self._tensors_fit(tried):
            return middle
        need = self.law(tried).peak_bytes(tried) + self._fixed_bytes
        gaps = self.replayed(tried, settings).reserved_bytes + self.outside_bytes - need
        near = self._largest_of_tensors(self._question.usable_bytes - gaps)
        return max(middle, min(near, high))

    def told(self, sizes: Sequence[int], largest: int) -> FormEstimate:
        """All that is told of the form."""
        settings = self._question.settings
        shown = largest or 1
        with_expandable = None
        if not self._target.is_cpu and settings.is_native and not settings.expandable_segments:
            other = self.largest(replace(settings, expandable_segments=True))
            with_expandable = other if other != largest else None
        return FormEstimate(
            checkpointing=self._trace.checkpointing,
            entries=tuple(self.entry(size) for size in sizes),
            largest=largest,
            largest_with_expandable_segments=with_expandable,
            shown_size=shown,
            peak=self.law(shown).peak(shown),
            layers=self._layers(shown),
        )

    def entry(self, size: int) -> Entry:
        """What a micro-batch size needs, and whether that fits."""
        question = self._question
        tensors = self.law(size).peak_bytes(size)
        total = tensors + self._fixed_bytes
        reserved: int | None = None
        why: str | None = None
        if total > question.usable_bytes:
            why = self._why(size, total)
        else:
            replayed = self.replayed(size, question.settings)
            reserved = replayed.reserved_bytes
            total = reserved + self.outside_bytes
            if replayed.refused_bytes is not None:
                total += replayed.refused_bytes
                why = "per_process_memory_fraction allows no more"
            elif total > question.usable_bytes:
                why = (
                    "its tensors would fit, but what the allocator cannot reuse between them makes "
                    f"it {self._missing(total)}"
                )
        return Entry(
            micro_batch_size=size,
            accumulation_steps=None
            if question.per_rank is None
            else question.accumulation_steps(size),
            tensor_bytes=tensors,
            reserved_bytes=reserved,
            total_bytes=total,
            fits=why is None,
            why=why,
        )

    def _missing(self, total: int) -> str:
        more = format_bytes(total - self._question.usable_bytes)
        return f"{more} more than may be filled"

    def _why(self, size: int, total: int) -> str:
        """What it is that the tensors alone fill too much with."""
        usable, missing = self._question.usable_bytes, self._missing(total)
        peak = self.law(size).peak(size)
        floor = sum(num for kind, num in peak.by_kind.items() if kind not in _GROWING)
        weights = peak.by_kind.get("weights", 0)
        if weights + self._fixed_bytes > usable:
            return f"the weights alone take {format_bytes(weights)}: {missing}"
        if floor + self._fixed_bytes > usable:
            return (
                f"weights, gradients and optimizer state take {format_bytes(floor)} whatever the "
                f"micro-batch size: {missing}"
            )
        most = max(_GROWING, key=lambda kind: peak.by_kind.get(kind, 0))
        taken = format_bytes(peak.by_kind.get(most, 0))
        return f"{_GROWING[most]} take {taken} at the peak: {missing}"

    def _layers(self, size: int) -> tuple[Layer, ...]:
        """Everything that the process occupies, so that the sum is what it needs."""
        law = self.law(size)
        tensors = law.peak_bytes(size)
        layers = [
            Layer(
                name="tensors of the step",
                num_bytes=tensors,
                basis="traced",
                source="one training step on tensors without data",
                place="allocator",
            ),
            *self._inside,
        ]
        if not self._target.is_cpu:
            inside = sum(layer.num_bytes for layer in layers)
            reserved = self.replayed(size, self._question.settings).reserved_bytes
            layers.append(
                Layer(
                    name="allocator",
                    num_bytes=max(0, reserved - inside),
                    basis="modelled",
                    source="rounding, gaps and cached blocks, by replay of every request"
                    + (
                        f"; averaging copies {format_bytes(self._averaging_bytes)} at a time"
                        if self._averaging_bytes
                        else ""
                    ),
                    place="allocator",
                )
            )
        return (*layers, *self._outside)
