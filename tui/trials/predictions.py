"""What was predicted of configurations, where the run's events carry it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from autotune.configuration import Configuration
from autotune.view import RunView, bytes_of


def all_predicted_bytes(view: RunView) -> dict[Configuration, int]:
    """Predicted memory by configuration: of candidates as they were planned, and of trials."""
    found: dict[Configuration, int] = {}
    known = (*_of_candidates(view), *_foreseen(view), *_of_trials(view))
    for configuration, prediction in known:
        num_bytes = bytes_of(prediction)
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


def _foreseen(view: RunView) -> Iterator[_Pair]:
    for entry in view.foreseen.candidates if view.foreseen else ():
        document, prediction = entry.get("configuration"), entry.get("predicted")
        if not isinstance(document, dict) or not isinstance(prediction, dict):
            continue
        try:
            configuration = Configuration.from_json(document)
        except ValueError:
            continue
        yield configuration, prediction


def _of_trials(view: RunView) -> Iterator[_Pair]:
    for trial in view.trials:
        yield trial.configuration, trial.predicted
