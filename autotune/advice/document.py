"""The answer of a run: configuration, evidence, alternatives, limits, as the public document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from pydantic import JsonValue, TypeAdapter

from autotune.advice.limits import also_consider, not_covered, slack
from autotune.advice.reasons import reasons
from autotune.configuration import Configuration
from autotune.events import Document
from autotune.outcome import Measured
from autotune.request import Request
from autotune.search.averaging import local_sgd_model
from autotune.search.batch_size import efficiency_of, noise_of
from autotune.search.evidence.foreseen import evaluation_size
from autotune.search.evidence.history import History, measured_again
from autotune.search.evidence.ranking import ALTERNATIVE_FRACTION, AlternativeKind
from autotune.trial.environment import shared
from autotune.view import RunView, TrialView
from autotune.workload.facts import WorkloadFacts

SCHEMA = 1


def document(view: RunView, history: History, request: Request) -> Document:
    """The public JSON document of a confirmed run.

    Args:
        view: The run, confirmation included.
        history: Its trials with the space they come from.
        request: What was asked for.

    Raises:
        ValueError: The run is not confirmed.
    """
    confirmed = view.confirmed
    chosen = view.trial(confirmed.number) if confirmed else None
    if confirmed is None or chosen is None or chosen.measured is None:
        raise ValueError("A run that is not confirmed has no recommendation.")
    baseline = (
        view.trial(confirmed.baseline_number) if confirmed.baseline_number is not None else None
    )
    facts = _facts(view)

    def efficiency(configuration: Configuration) -> JsonValue:
        return _efficiency(view, history, configuration, facts)

    return {
        "schema": SCHEMA,
        "run": view.run,
        "recommendation": {
            "configuration": _json(chosen.configuration),
            "measured": _readings(chosen.measured),
            "sample_efficiency": efficiency(chosen.configuration),
            "baseline": {
                "configuration": _json(history.space.baseline),
                "measured": _readings(baseline.measured)
                if baseline is not None and baseline.measured is not None
                else {},
            },
            "speedup": {
                "value": confirmed.speedup,
                "ci95": list(confirmed.speedup_ci95),
            }
            if baseline is not None
            else None,
            "evaluation": evaluation_json(history, chosen),
            "memory_limit_bytes": view.machine.memory_limit_bytes if view.machine else 0,
            "reasons": [
                *reasons(view, history, chosen, confirmed, facts),
            ],
            "also_consider": list(also_consider(view, facts, chosen.configuration)),
            "alternatives": _alternatives(view, history, chosen.configuration, efficiency),
            "not_covered": [
                *not_covered(view, history, facts, chosen.configuration, alone=request.alone),
                *slack(confirmed.memory),
            ],
        },
        "trials": trials_json(view, efficiency),
        "workload": {
            "name": facts.name,
            "task": facts.task,
            "model_class": facts.model_class,
            "precision": facts.precision,
            "loss_repair": view.parity is not None and view.parity.repaired,
            "has_unused_parameters": bool(view.parity and view.parity.unused_parameters),
        },
        "environment": launch_environment(view, chosen.configuration, request),
        "machine": view.machine.machine if view.machine else {},
        "cost": cost_json(view),
    }


def evaluation_json(history: History, chosen: TrialView) -> JsonValue:
    """The evaluation batch size that goes with a configuration, and what it occupies.

    None where nothing is predicted; `measured` is empty where its one step was not run.
    """
    size = evaluation_size(history, chosen.configuration)
    if size is None or history.foresight is None:
        return None
    tried = chosen.measured.interlude if chosen.measured is not None else None
    is_run = tried is not None and tried.evaluation_bytes is not None
    return {
        "per_device_eval_batch_size": size,
        "predicted": {"total_bytes": history.foresight.evaluation_bytes(size)},
        "measured": {
            "batch_size": tried.evaluation_batch_size,
            "total_bytes": tried.evaluation_bytes,
        }
        if tried is not None and is_run
        else {},
    }


def trials_json(
    view: RunView, efficiency: Callable[[Configuration], JsonValue] | None = None
) -> list[JsonValue]:
    """All trials of a run as the public document lists them.

    Args:
        view: The run.
        efficiency: Sample efficiency of a configuration; without it nothing is said of learning.
    """
    return [
        {
            "number": trial.number,
            "purpose": trial.purpose,
            "configuration": _json(trial.configuration),
            "outcome": trial.outcome.kind,
            "measured": _readings(trial.outcome) if isinstance(trial.outcome, Measured) else {},
            **(
                {"sample_efficiency": efficiency(trial.configuration)}
                if efficiency is not None and isinstance(trial.outcome, Measured)
                else {}
            ),
            "predicted": trial.predicted or {},
            "cause": None if isinstance(trial.outcome, Measured) else trial.outcome.cause,
            # Of another engine of a shared study: nothing was measured here.
            **({"host": trial.origin.host} if trial.origin is not None else {}),
        }
        for trial in sorted(view.trials, key=lambda t: t.number)
        if trial.outcome is not None
    ]


def cost_json(view: RunView) -> Document:
    """What a run took so far."""
    finished = [t for t in view.trials if t.wall_s is not None]
    return {
        "wall_s": round(view.now_s, 3),
        "trials": sum(not t.is_repeat for t in finished),
        "repeats": sum(t.is_repeat for t in finished),
        "trial_s": round(sum(t.wall_s or 0.0 for t in finished), 3),
    }


def launch_environment(
    view: RunView, configuration: Configuration, request: Request
) -> dict[str, JsonValue]:
    """The variables that each rank of a configuration ran under."""
    alone = dict(view.workload.environment) if view.workload else {}
    if request.alone:
        return dict(alone)
    return dict(shared(alone, max(1, configuration.world_size // request.num_nodes)))


def _efficiency(
    view: RunView, history: History, configuration: Configuration, facts: WorkloadFacts
) -> JsonValue:
    efficiency = local_sgd_model(facts).efficiency(configuration.local_sgd_steps)
    noise = noise_of(view.noise_scale) if view.noise_scale is not None else None
    by_batch = efficiency_of(configuration, history.space.global_batch_size, noise)
    return efficiency.times(by_batch).to_json()  # type: ignore[return-value]


def _json(configuration: Configuration) -> Document:
    return configuration.to_json()  # type: ignore[return-value]


def _readings(measured: Measured) -> Document:
    memory, exchange = measured.memory, measured.exchange
    return {
        "samples_per_s": measured.samples_per_s,
        "samples_per_s_ci95": list(measured.samples_per_s_ci95),
        "tokens_per_s": measured.speed.tokens_per_s,
        "step_s": measured.speed.step_s,
        "memory": {
            "allocated_bytes": memory.allocated_bytes,
            "reserved_bytes": memory.reserved_bytes,
            "outside_bytes": memory.outside_bytes,
            "total_bytes": memory.total_bytes,
            "method": memory.method,
        },
        **({"exchange": asdict(exchange)} if exchange is not None else {}),
    }


def _facts(view: RunView) -> WorkloadFacts:
    if view.workload is None:
        raise ValueError("The run has no workload.")
    return TypeAdapter(WorkloadFacts).validate_python(view.workload.facts)


def kinds(document: Document) -> tuple[AlternativeKind | str, ...]:
    """The kinds of alternatives that a document offers."""
    answer = document.get("recommendation")
    found = answer.get("alternatives") if isinstance(answer, dict) else None
    return tuple(
        str(item["kind"])
        for item in (found if isinstance(found, list) else [])
        if isinstance(item, dict) and "kind" in item
    )


def _alternatives(
    view: RunView,
    history: History,
    chosen: Configuration,
    efficiency: Callable[[Configuration], JsonValue],
) -> list[JsonValue]:
    """Other configurations that somebody may prefer, by the trials of the search.

    What was measured again beside the chosen one is told by those rounds, which overtake the
    search: it is left out where speed was its only merit, or where it turned out too slow.
    """
    trial = next((t for t in history.measured if t.configuration == chosen), None)
    if trial is None:
        return []
    baseline = history.space.baseline
    again = {t.configuration: t for t in measured_again(view)}
    beaten = {t.configuration for t in view.trials if t.purpose == "confirm"} - {chosen}
    rounds = history.standing_of(again.values())
    found = []
    for other in history.standing.alternatives(trial, baseline):
        configuration = other.trial.configuration
        if configuration == chosen or (other.kind == "fastest" and configuration in beaten):
            continue
        if configuration in again and chosen in again:
            mine, own = again[configuration], again[chosen]
            if rounds.ratio(mine, own).value < 1 - ALTERNATIVE_FRACTION:
                continue
            other = rounds.alternative(other.kind, mine, own, baseline)
        found.append(other)
    return [
        {
            "kind": other.kind,
            "configuration": _json(other.trial.configuration),
            "measured": _readings(other.trial.measured),
            "sample_efficiency": efficiency(other.trial.configuration),
            "reason": other.reason,
        }
        for other in found
    ]
