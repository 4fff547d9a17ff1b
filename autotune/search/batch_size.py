"""Whether another global batch size learns more per second, where the user leaves it open.

A larger global batch has fewer optimizer steps and exchanges for as many samples, and each sample
teaches less; how much less follows from the gradient noise scale, which a few steps of the best
configuration show. The size that promises most is tried, and confirmed like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from autotune.configuration import Configuration
from autotune.cost.batch_advice import BatchAdvice, advice_for_batch
from autotune.cost.learning import SampleEfficiency, batch_efficiency, optimizer_kind
from autotune.cost.noise import NoiseScale, estimate_noise_scale, has_pair
from autotune.events import NoiseScaleMeasured
from autotune.search.engine import Engine
from autotune.search.evidence.finished import MeasuredTrial
from autotune.search.parity import CHECK_LIMIT_S
from autotune.trial.protocol import GradientsMeasured, MeasureGradients
from autotune.workload.facts import WorkloadFacts

NUM_WINDOWS = 20
"""Optimizer steps whose micro-gradients are read."""
NUM_WARMUP_STEPS = 30
"""Steps before them: at the very beginning of training the noise scale is another."""
GRADIENT_STEP_FACTOR = 1.5
"""A step whose gradients are read takes about so many times as long as one of training."""
LARGEST_FACTOR = 16
"""How far from the present size another one may be: the noise scale says little beyond."""
GAIN_WORTH_A_CHANGE = 0.05
"""Expected gain below which the global batch size stays: learning rate and schedule would have to
change with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What another global batch size is expected to give."""

    configuration: Configuration
    samples_per_s: float
    efficiency: SampleEfficiency

    @property
    def useful_samples_per_s(self) -> float:
        """Samples per second times sample efficiency."""
        return self.samples_per_s * self.efficiency.value


def try_batch_sizes(
    engine: Engine,
    facts: WorkloadFacts,
    sizes: tuple[int, int] | None,
    known: NoiseScaleMeasured | None,
    *,
    reserve_s: float = 0.0,
) -> None:
    """Measures the noise scale and tries the global batch size that promises most.

    Args:
        engine: After its search.
        facts: Of the workload.
        sizes: Smallest and largest that may be chosen; None leaves the size as it is.
        known: The noise scale where an earlier engine of this run has measured it.
        reserve_s: Seconds of the budget that confirmation needs.
    """
    leaders = engine.history.leaders
    if sizes is None or not leaders or engine.session.should_end():
        return
    best = leaders[0]
    left_s = engine.session.remaining_s - reserve_s
    noise = noise_of(known) if known is not None else _measured_noise(engine, best, facts, left_s)
    if noise is None:
        return
    if facts.num_rows is not None:
        # No step can hold more rows than there are.
        sizes = (sizes[0], min(sizes[1], facts.num_rows))
    reference = engine.history.space.global_batch_size
    promises = [
        promise
        for promise in _promises(best, noise, sizes, reference)
        if not engine.history.is_foreseen_to_pass_the_limit(promise.configuration)
    ]
    engine.history = replace(
        engine.history,
        batch_efficiencies={
            **engine.history.batch_efficiencies,
            **{p.configuration.global_batch_size: p.efficiency for p in promises},
        },
    )
    chosen = max(promises, key=lambda p: p.useful_samples_per_s, default=None)
    now = best.measured.samples_per_s * engine.history.efficiency(best.configuration).value
    if chosen is None or chosen.useful_samples_per_s < now * (1 + GAIN_WORTH_A_CHANGE):
        return
    size = chosen.configuration.global_batch_size
    if engine.history.is_tried(chosen.configuration) or engine.session.remaining_s <= reserve_s:
        return
    engine.run(
        chosen.configuration,
        "search",
        f"a global batch of {size} instead of {reference} promises most",
    )


def measuring_s(step_s: float) -> float:
    """Seconds that measuring the noise scale takes.

    Args:
        step_s: Of a training step.
    """
    return step_s * (NUM_WARMUP_STEPS + GRADIENT_STEP_FACTOR * NUM_WINDOWS)


def known_efficiencies(
    known: NoiseScaleMeasured | None, tried: Iterable[Configuration], reference: int
) -> dict[int, SampleEfficiency]:
    """Sample efficiency of the global batch sizes that an earlier engine of a run has tried.

    Args:
        known: What it measured, if it did.
        tried: Configurations of its trials.
        reference: The baseline's global batch size.
    """
    if known is None:
        return {}
    sizes = {configuration.global_batch_size for configuration in tried} - {reference}
    return {size: batch_efficiency(size, reference, noise_of(known)) for size in sizes}


def advice(
    old: int, new: int, facts: WorkloadFacts, noise: NoiseScale | None, *, total_steps: int | None
) -> BatchAdvice:
    """What else must change with the global batch size."""
    return advice_for_batch(
        old,
        new,
        optimizer=optimizer_kind(facts.optim),
        noise_scale=noise,
        present=replace(facts.hyperparameters, max_steps=total_steps),
    )


def efficiency_of(
    configuration: Configuration, reference: int, noise: NoiseScale | None
) -> SampleEfficiency:
    """Sample efficiency of a configuration's global batch size against the reference."""
    return batch_efficiency(configuration.global_batch_size, reference, noise)


def noise_of(event: NoiseScaleMeasured) -> NoiseScale:
    """The noise scale as a run keeps it."""
    return NoiseScale(
        value=event.value,
        interval=event.interval,
        num_windows=event.num_windows,
        num_micro_batches=event.num_micro_batches,
        rows_per_micro_batch=event.rows_per_micro_batch,
        is_preconditioned=event.is_preconditioned,
        note=event.note,
    )


def _measured_noise(
    engine: Engine, best: MeasuredTrial, facts: WorkloadFacts, left_s: float
) -> NoiseScale | None:
    configuration = _with_pair(replace(best.configuration, local_sgd_steps=1))
    if configuration is None:
        engine.session.warn(
            "The gradient noise scale cannot be measured: no optimizer step has two micro-batches.",
            "The global batch size stays; give a larger one to start from.",
        )
        return None
    wanted_s = measuring_s(best.measured.speed.step_s)
    if wanted_s > left_s:
        engine.session.warn(
            f"There is no time to measure the gradient noise scale: it takes {wanted_s:.0f} s.",
            "The global batch size stays as it is; give more with --budget.",
        )
        return None
    reply = engine.pool.ask(
        MeasureGradients(
            configuration=configuration,
            num_windows=NUM_WINDOWS,
            num_warmup_steps=NUM_WARMUP_STEPS,
            repair_loss=engine.plan.repair_loss,
            find_unused=engine.plan.find_unused,
        ),
        log=engine.session.run.path / "gradients.log",
        time_limit_s=min(CHECK_LIMIT_S, left_s),
    )
    if not isinstance(reply, GradientsMeasured) or reply.gradients is None:
        reason = getattr(reply, "cause", "it showed no pair of gradients")
        engine.session.warn(
            f"The gradient noise scale could not be measured: {reason}",
            "The global batch size stays as it is.",
        )
        return None
    preconditioned = optimizer_kind(facts.optim) == "adam"
    noise = estimate_noise_scale(reply.gradients, preconditioned=preconditioned)
    plain = estimate_noise_scale(reply.gradients, preconditioned=False)
    engine.session.emit(
        NoiseScaleMeasured(
            value=noise.value,
            interval=noise.interval,
            num_windows=noise.num_windows,
            num_micro_batches=noise.num_micro_batches,
            rows_per_micro_batch=noise.rows_per_micro_batch,
            is_preconditioned=noise.is_preconditioned,
            note=noise.note,
            plain_interval=plain.interval,
        )
    )
    return noise


def _with_pair(configuration: Configuration) -> Configuration | None:
    """The same step in at least two micro-batches; a smaller one needs no more memory."""
    if has_pair(configuration):
        return configuration
    size = configuration.micro_batch_size
    if size % 2:
        return None
    return replace(
        configuration,
        micro_batch_size=size // 2,
        accumulation_steps=2 * configuration.accumulation_steps,
    )


def _promises(
    best: MeasuredTrial, noise: NoiseScale, sizes: tuple[int, int], reference: int
) -> Iterator[Promise]:
    """Other numbers of accumulation steps at the best micro-batch size.

    A step is so many micro-batches, and a rest that does not depend on their number: the optimizer
    and the exchange. The phases of the best trial tell the two apart.
    """
    configuration, phases = best.configuration, best.measured.phases
    if phases is None:
        return
    num = configuration.accumulation_steps
    step_s = best.measured.speed.step_s
    growing_s = phases.data_s + phases.forward_s + phases.backward_s
    if not growing_s:
        return
    micro_s = step_s * growing_s / (growing_s + phases.optimizer_s) / num
    rest_s = step_s - micro_s * num
    per_micro = configuration.micro_batch_size * configuration.world_size
    low, high = max(sizes[0], reference / LARGEST_FACTOR), min(sizes[1], reference * LARGEST_FACTOR)
    doublings = range(1, LARGEST_FACTOR.bit_length())
    larger = {num * 2**n for n in doublings}
    smaller = {num // 2**n for n in doublings if num % 2**n == 0}
    for steps in sorted(smaller | larger):
        size = per_micro * steps
        if low <= size <= high:
            yield Promise(
                configuration=replace(configuration, accumulation_steps=steps),
                samples_per_s=size / (micro_s * steps + rest_s),
                efficiency=batch_efficiency(size, reference, noise),
            )
