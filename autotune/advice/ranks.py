"""Why so many processes, and why they average or exchange: the answer's sentences about ranks."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.configuration import Configuration
from autotune.search.averaging import local_sgd_model
from autotune.search.finished import MeasuredTrial
from autotune.search.history import History
from autotune.units import format_bytes, format_rate, format_seconds
from autotune.view import RunView
from autotune.workload.facts import WorkloadFacts


def rank_reasons(
    view: RunView, history: History, configuration: Configuration, facts: WorkloadFacts
) -> Iterator[str]:
    """Sentences about the number of processes and about local SGD.

    Args:
        view: The run.
        history: Its trials with the space they come from.
        configuration: The answer.
        facts: Of the workload.
    """
    if history.space.baseline.world_size == 1:
        yield "Local SGD is left out: one process has nobody to average with."
        return
    yield from _distributing(history, configuration)
    yield from _exchange(history)
    yield from _local_sgd(view, history, configuration, facts)


def _best(history: History, *, alone: bool) -> MeasuredTrial | None:
    trials = [t for t in history.measured if (t.configuration.world_size == 1) == alone]
    return history.standing.best(trials)


def _distributing(history: History, configuration: Configuration) -> Iterator[str]:
    """Whether all processes together do better than one."""
    one, all_ranks = _best(history, alone=True), _best(history, alone=False)
    if one is None or all_ranks is None:
        return
    num = all_ranks.configuration.world_size
    rates = (
        f"{format_rate(all_ranks.measured.samples_per_s)} samples/s on {num} processes at "
        f"{all_ranks.configuration}, {format_rate(one.measured.samples_per_s)} on one at "
        f"{one.configuration}"
    )
    if configuration.world_size == 1:
        yield f"One process alone is better than all {num} on this link: {rates}."
    else:
        yield f"{num} processes do better than one: {rates}."


def _exchange(history: History) -> Iterator[str]:
    """Where the time of a step on all ranks goes."""
    trial = history.standing.best([t for t in history.measured if t.measured.exchange is not None])
    if trial is None or trial.measured.exchange is None:
        return
    exchange = trial.measured.exchange
    share = exchange.exposed_s / exchange.ddp_step_s if exchange.ddp_step_s else 0.0
    yield (
        f"At {trial.configuration}, exchanging gradients adds {format_seconds(exchange.exposed_s)} "
        f"to {format_seconds(exchange.compute_s)} of computation a step ({share:.0%} of it); one "
        f"averaging of {format_bytes(exchange.averaging_bytes)} takes "
        f"{format_seconds(exchange.averaging_s)}."
    )
    if exchange.collectives:
        yield (
            f"Besides, the ranks meet {exchange.num_collectives_per_step:g} time(s) in every step "
            f"({', '.join(exchange.collectives)}): average_tokens_across_devices, dispatched "
            "batches, logging or metrics do that."
        )


def _local_sgd(
    view: RunView, history: History, configuration: Configuration, facts: WorkloadFacts
) -> Iterator[str]:
    for ruled_out in history.space.ruled_out:
        if ruled_out.what.startswith("local SGD"):
            yield f"Local SGD is left out: {ruled_out.reason}."
    predicted = view.local_sgd
    if predicted is None:
        return
    yield predicted.sentence
    steps = configuration.local_sgd_steps
    if steps == 1:
        return
    efficiency = local_sgd_model(facts).efficiency(steps)
    trial = next((t for t in history.measured if t.configuration == configuration), None)
    rate = trial.measured.samples_per_s if trial is not None else None
    low, high = efficiency.interval
    speed = f"{format_rate(rate)} samples/s measured" if rate is not None else "the measured speed"
    yield (
        f"Local SGD every {steps} steps: {speed}, times a sample efficiency of "
        f"{efficiency.value:.2f} ({low:.2f} to {high:.2f}, {efficiency.basis})"
        + (f", is worth {format_rate(rate * efficiency.value)} samples/s." if rate else ".")
    )
