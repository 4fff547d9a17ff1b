"""Why so many processes, and why they average or exchange: the answer's sentences about ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autotune.configuration import Configuration
from autotune.cost.batch_advice import advice_for_clipping
from autotune.cost.communication import (
    Rate,
    break_even_steps,
    hides_exchange,
)
from autotune.cost.decision import Rival, Way, explain
from autotune.cost.drift import describe_drift
from autotune.outcome import Exchange, Measured
from autotune.search.evidence.finished import MeasuredTrial
from autotune.search.evidence.history import History, measured_again
from autotune.search.evidence.ranking import Standing
from autotune.search.link import link_in
from autotune.units import (
    format_bytes,
    format_quantity,
    format_short_time,
)
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
    yield from _decision(view, history, configuration)
    yield from _exchange(view, history)
    yield from _link(view)
    for ruled_out in history.space.ruled_out:
        if ruled_out.what.startswith("local SGD"):
            yield f"Local SGD is left out: {ruled_out.reason}."
    if view.local_sgd is not None:
        yield view.local_sgd.sentence
    yield from _drift(view, configuration)
    if configuration.local_sgd_steps > 1 and facts.clips_gradients:
        yield advice_for_clipping(
            view.noise_scale.plain_interval if view.noise_scale is not None else None,
            rows_per_rank=configuration.global_batch_size // configuration.world_size,
            num_ranks=configuration.world_size,
            max_grad_norm=facts.hyperparameters.max_grad_norm,
        )


def _decision(view: RunView, history: History, configuration: Configuration) -> Iterator[str]:
    """Speed, sample efficiency and product of the answer, and how one process compares."""
    confirmed = measured_again(view)
    readings = {t.configuration: t.measured for t in (*history.measured, *confirmed)}
    ways = {c: _way(history, c, measured) for c, measured in readings.items()}
    if configuration in ways:
        rival = _rival(history, confirmed, ways, configuration)
        yield from explain(ways[configuration], tuple(ways.values()), rival)


def _way(history: History, configuration: Configuration, measured: Measured) -> Way:
    return Way(
        configuration=configuration,
        rate=Rate(
            samples_per_s=measured.samples_per_s,
            samples_per_s_interval=measured.samples_per_s_ci95,
            efficiency=history.efficiency(configuration),
        ),
    )


def _rival(
    history: History,
    confirmed: tuple[MeasuredTrial, ...],
    ways: dict[Configuration, Way],
    chosen: Configuration,
) -> Rival | None:
    """What was measured in the same rounds, and came to more without being shown to be better."""
    mine = next((trial for trial in confirmed if trial.configuration == chosen), None)
    if mine is None:
        return None
    rounds = Standing(confirmed)
    gains = {
        trial.configuration: history.gain(rounds.ratio(trial, mine), trial.configuration, chosen)
        for trial in confirmed
        if trial is not mine and history.may_be_chosen(trial.configuration)
    }
    best = max(gains, key=lambda configuration: gains[configuration].value, default=None)
    if best is None or not gains[best].low <= 1 < gains[best].value:
        return None
    return Rival(way=ways[best], ratio=gains[best].value, ratio_interval=gains[best].interval)


def _exchange(view: RunView, history: History) -> Iterator[str]:
    """Where the time of a step on all ranks goes, in the trial that local SGD was reckoned from."""
    known = [t for t in history.measured if t.measured.exchange is not None]
    reckoned = [t for t in known if view.local_sgd and t.number == view.local_sgd.trial]
    trial = history.standing.best(reckoned or known)
    if trial is None or trial.measured.exchange is None:
        return
    exchange = trial.measured.exchange
    share = exchange.exposed_s / exchange.compute_s if exchange.compute_s else 0.0
    yield (
        f"In trial {trial.number} ({trial.configuration}), exchanging gradients comes to "
        f"{format_short_time(exchange.exposed_s)} a step on top of "
        f"{format_short_time(exchange.compute_s)} of computation ({share:.0%} more); one averaging "
        f"of {format_bytes(exchange.averaging_bytes)} takes "
        f"{format_short_time(exchange.averaging_s)}, {_break_even(exchange)}."
    )
    if exchange.collectives:
        yield (
            f"Besides, the ranks meet {_so_often(exchange.num_collectives_per_step)} in every step "
            f"({', '.join(exchange.collectives)}): average_tokens_across_devices, dispatched "
            "batches, logging or metrics do that."
        )


def _so_often(number: float) -> str:
    return "once" if number == 1 else f"{number:g} times"


def _break_even(exchange: Exchange) -> str:
    least = break_even_steps(exchange)
    if least is None:
        return "which no number of local SGD steps makes up for"
    if hides_exchange(exchange):
        return "which is too little to gain by averaging more seldom"
    return f"which makes up for itself from {max(2, math.floor(least) + 1)} local SGD steps on"


def _link(view: RunView) -> Iterator[str]:
    """What the wire between the ranks can do, and what is wrong with it."""
    link = link_in(view)
    if link is None or not link.sizes():
        return
    way = f" through {link.interface.name}" if link.interface is not None else ""
    yield (
        f"Between the ranks, the smallest all-reduce takes {format_short_time(link.latency_s)} and "
        f"large ones move {format_quantity(8 * link.bus_bytes_per_s, 'bit/s')}{way} "
        f"({link.backend})."
    )
    for finding in link.findings:
        if finding.is_problem:
            yield f"{finding.cause} {finding.remedy or ''}".rstrip()


def _drift(view: RunView, configuration: Configuration) -> Iterator[str]:
    """How far apart the ranks were before they averaged, where the answer has them do so."""
    if configuration.local_sgd_steps == 1:
        return
    for trial in view.trials:
        distances = trial.measured.distances if trial.measured is not None else None
        if trial.configuration == configuration and distances is not None:
            yield describe_drift(
                distances,
                local_sgd_steps=configuration.local_sgd_steps,
                num_ranks=configuration.world_size,
            ).sentence
            return
