"""What was predicted of configurations, where the run's events carry it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from autotune.configuration import Configuration
from autotune.view import RunView


def predicted_bytes(document: Mapping[str, JsonValue] | None) -> int | None:
    """The memory that a prediction names: `total_bytes`, at the top or under `memory`."""
    if document is None:
        return None
    memory = document.get("memory")
    for place in (document, memory if isinstance(memory, dict) else {}):
        value = place.get("total_bytes")
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value)
    return None


def all_predicted_bytes(view: RunView) -> dict[Configuration, int]:
    """Predicted memory by configuration: of candidates as they were planned, and of trials."""
    found: dict[Configuration, int] = {}
    for configuration, prediction in (*_of_candidates(view), *_of_trials(view)):
        num_bytes = predicted_bytes(prediction)
        if num_bytes is not None:
            found[configuration] = num_bytes
    return found


def candidates(view: RunView) -> list[Configuration]:
    """The configurations that the search chooses from; what cannot be read is left out."""
    return [configuration for configuration, _ in _of_candidates(view)]


_Pair = tuple[Configuration, Mapping[str, JsonValue] | None]


def _of_candidates(view: RunView) -> Iterator[_Pair]:
    for candidate in view.space.candidates if view.space else ():
        document = dict(candidate)
        prediction = document.pop("predicted", None)
        try:
            configuration = Configuration.from_json(document)
        except ValueError:
            continue
        yield configuration, prediction if isinstance(prediction, dict) else None


def _of_trials(view: RunView) -> Iterator[_Pair]:
    for trial in view.trials:
        yield trial.configuration, trial.predicted
