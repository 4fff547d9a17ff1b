"""What was predicted of configurations, where the run's events carry it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from autotune.configuration import Configuration
from autotune.events import MemoryForeseen, SpacePlanned
from autotune.view import RunView, TrialView, bytes_of


def all_predicted_bytes(view: RunView) -> Mapping[Configuration, int]:
    """Predicted memory by configuration: of candidates as they were planned, and of trials."""
    of_trials = {
        trial.configuration: trial.predicted_bytes
        for trial in view.trials
        if trial.predicted_bytes is not None
    }
    return {**_before_trials(view), **of_trials}


def _before_trials(view: RunView) -> Mapping[Configuration, int]:
    """What was predicted before the first trial, which there may be a lot of."""
    if _latest:
        (space, foreseen), known = _latest[0]
        if space is view.space and foreseen is view.foreseen:
            return known
    found: dict[Configuration, int] = {}
    for configuration, prediction in (*_of_candidates(view), *_foreseen(view)):
        num_bytes = bytes_of(prediction)
        if num_bytes is not None:
            found[configuration] = num_bytes
    _latest[:] = [((view.space, view.foreseen), found)]
    return found


def has_predictions(view: RunView) -> bool:
    """Whether the run's events predict the memory of anything."""
    return bool(_before_trials(view)) or any(
        trial.predicted_bytes is not None for trial in view.trials
    )


def predicted_bytes(trial: TrialView, view: RunView) -> int | None:
    """What was predicted of a trial's memory: told with it, else of its configuration."""
    own = trial.predicted_bytes
    return _before_trials(view).get(trial.configuration) if own is None else own


def candidates(view: RunView) -> list[Configuration]:
    """The configurations that the search chooses from; what cannot be read is left out."""
    return [configuration for configuration, _ in _of_candidates(view)]


_Key = tuple[SpacePlanned | None, MemoryForeseen | None]
_latest: list[tuple[_Key, Mapping[Configuration, int]]] = []
"""What was asked for last: a table asks for the same view again and again."""
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
