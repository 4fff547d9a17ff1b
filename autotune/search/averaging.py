"""Whether averaging parameters now and then beats exchanging gradients in every step.

What every number of local SGD steps gives follows from the compute and averaging times that the
trials on several ranks measured; only the one that promises most is tried, and it is confirmed like
any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.cost.communication import (
    DDP_STAYS,
    LocalSGDChoice,
    Rate,
    choose_local_sgd_steps,
    legal_step_counts,
)
from autotune.cost.learning import (
    NOT_NEEDED,
    LocalSGDModel,
    SampleEfficiency,
    assumed_local_sgd,
    optimizer_kind,
)
from autotune.events import LocalSGDPredicted
from autotune.outcome import Exchange
from autotune.search.engine import Engine
from autotune.search.evidence.finished import MeasuredTrial
from autotune.search.evidence.history import History
from autotune.workload.facts import WorkloadFacts

COMPUTE_TIE = 0.05
"""Compute times closer than this are the same: then the fastest measured step decides."""


def local_sgd_model(facts: WorkloadFacts) -> LocalSGDModel:
    """What is assumed of a job's sample efficiency under local SGD."""
    return assumed_local_sgd(optimizer_kind(facts.optim), clips=facts.clips_gradients)


def efficiencies(step_counts: tuple[int, ...], model: LocalSGDModel) -> dict[int, SampleEfficiency]:
    """Sample efficiency by local SGD steps, as decisions use it."""
    return {steps: model.efficiency(steps) for steps in step_counts}


def try_local_sgd(
    engine: Engine, model: LocalSGDModel, *, wish: str, total_steps: int | None
) -> None:
    """Predicts every step count and tries the one that learns most per second.

    Nothing happens where no step count may be chosen, or nothing was measured on several ranks.

    Args:
        engine: After its search.
        model: How sample efficiency falls with the step count.
        wish: The user's: auto, or a number, which is tried whatever is expected of it.
        total_steps: Optimizer steps of the training to come.
    """
    history = engine.history
    found = _most_promising(history)
    if found is None or not history.space.local_sgd_steps or engine.session.should_end():
        return
    exchange = found.exchange
    counts = history.space.local_sgd_steps
    if wish == "auto":
        useful = legal_step_counts(exchange, total_steps)
        counts = tuple(steps for steps in counts if steps in useful)
    choice = choose_local_sgd_steps(
        exchange,
        model,
        samples_per_step=found.trial.configuration.global_batch_size,
        step_counts=counts,
        one_process=_one_process(history),
    )
    engine.session.emit(_event(found.trial, choice, is_asked=wish != "auto"))
    steps = choice.local_sgd_steps if wish == "auto" else counts[0]
    candidate = replace(found.trial.configuration, local_sgd_steps=steps)
    if steps == 1 or history.is_tried(candidate):
        return
    if engine.session.remaining_s <= 0 or history.is_foreseen_to_pass_the_limit(candidate):
        return
    why = (
        f"local SGD every {steps} steps promises most"
        if wish == "auto"
        else f"local SGD every {steps} steps, as you asked"
    )
    engine.run(candidate, "search", why)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promising:
    trial: MeasuredTrial
    exchange: Exchange


def _most_promising(history: History) -> _Promising | None:
    """The trial on several ranks that computes fastest; the fastest step of those that tie."""
    found = [
        _Promising(trial=t, exchange=t.measured.exchange)
        for t in history.measured
        if t.measured.exchange is not None
    ]
    if not found:
        return None
    least_s = min(f.exchange.compute_s for f in found)
    tied = [f for f in found if f.exchange.compute_s <= least_s * (1 + COMPUTE_TIE)]
    best = history.standing.best([f.trial for f in tied])
    return next(f for f in tied if f.trial is best)


def _one_process(history: History) -> Rate | None:
    alone = history.standing.best([t for t in history.measured if t.configuration.world_size == 1])
    if alone is None or history.space.baseline.world_size == 1:
        return None
    return Rate(
        samples_per_s=alone.measured.samples_per_s,
        samples_per_s_interval=alone.measured.samples_per_s_ci95,
        efficiency=NOT_NEEDED,
    )


def _event(trial: MeasuredTrial, choice: LocalSGDChoice, *, is_asked: bool) -> LocalSGDPredicted:
    sentence = choice.sentence
    if is_asked and sentence.startswith(DDP_STAYS):
        # What was asked for is tried all the same, and taken.
        sentence = f"Unasked, DDP would stay{sentence.removeprefix(DDP_STAYS)}"
    return LocalSGDPredicted(
        trial=trial.number,
        local_sgd_steps=choice.local_sgd_steps,
        rows=tuple(
            {
                "local_sgd_steps": row.local_sgd_steps,
                "step_s": row.step_s,
                "samples_per_s": row.rate.samples_per_s,
                "sample_efficiency": row.rate.efficiency.to_json(),  # type: ignore[dict-item]
                "useful_samples_per_s": row.rate.useful_samples_per_s,
                "is_measured": row.is_measured,
            }
            for row in choice.rows
        ),
        sentence=sentence,
    )
