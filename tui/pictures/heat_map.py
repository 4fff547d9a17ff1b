"""Micro-batch size against checkpointing: what was measured, and what is only predicted.

Measured cells are filled, bold and bare; predicted ones stand in parentheses and are dim. Nothing
but what the run's events say is drawn: where they carry no prediction, what fits is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textual.content import Content

from autotune.configuration import Checkpointing, Configuration
from autotune.display import wording
from autotune.units import format_bytes, format_rate
from autotune.view import RunView, TrialView
from tui import words
from tui.trials.columns import checkpointing
from tui.trials.predictions import all_predicted_bytes, candidates

_CELL = 8
_NAME = 11


@dataclass(frozen=True, slots=True)
class Cell:
    """One square of the map."""

    text: str
    style: str = ""


def draw(view: RunView, width: int, height: int) -> list[Content]:
    """The map, or a sentence where there is nothing to draw yet."""
    known = [*candidates(view), *(trial.configuration for trial in view.trials)]
    if not known:
        return [Content.styled("The candidates are not known yet.", "$text-muted")]
    num_columns = max(1, (width - _NAME) // _CELL)
    sizes = _around_best(sorted({c.micro_batch_size for c in known}), view, num_columns)
    forms = sorted({c.checkpointing for c in known}, key=_weight)[: max(1, height - 2)]
    predictions = all_predicted_bytes(view)
    head = "".join(f"{size:>{_CELL}}" for size in sizes)
    lines = [Content.styled(f"{'samples/s':<{_NAME}}{head}", "$text-muted")]
    for form in forms:
        parts = [Content(f"{_form_name(form):<{_NAME}}")]
        for size in sizes:
            cell = _cell(view, known, predictions, size, form)
            parts.append(Content.styled(f"{cell.text:>{_CELL}}", cell.style))
        lines.append(Content("").join(parts))
    return [*lines, Content.styled(_legend(predictions)[:width], "$text-muted")]


def wanted_rows(view: RunView) -> int:
    """Rows that the whole map takes."""
    known = [*candidates(view), *(trial.configuration for trial in view.trials)]
    return len({c.checkpointing for c in known}) + 2


def _legend(predictions: Mapping[Configuration, int]) -> str:
    if predictions:
        return "40.2 measured  (2.10 G) predicted peak, not measured  ▲ out of memory  · not tried"
    return "40.2 measured  ▲ out of memory  ✗ failed  · fit unknown before a trial"


def _form_name(form: Checkpointing) -> str:
    word = checkpointing(form)
    return "no ckpt" if word == "off" else f"ckpt {word}"


def _weight(form: Checkpointing) -> tuple[float, bool]:
    return (1 / form.every_n_layers if form.every_n_layers else 0.0, form.offload)


def _around_best(sizes: Sequence[int], view: RunView, most: int) -> list[int]:
    """As many sizes as fit, those near the best one."""
    if len(sizes) <= most:
        return list(sizes)
    best = view.trial(view.best.number) if view.best else view.baseline
    middle = best.configuration.micro_batch_size if best else sizes[0]
    at = min(range(len(sizes)), key=lambda i: abs(sizes[i] - middle))
    first = max(0, min(at - most // 2, len(sizes) - most))
    return list(sizes[first : first + most])


def _cell(
    view: RunView,
    known: Sequence[Configuration],
    predictions: Mapping[Configuration, int],
    size: int,
    form: Checkpointing,
) -> Cell:
    def is_here(configuration: Configuration) -> bool:
        return configuration.micro_batch_size == size and configuration.checkpointing == form

    trials = [trial for trial in view.trials if is_here(trial.configuration)]
    measured = [trial for trial in trials if trial.measured is not None]
    if measured:
        return _measured_cell(max(measured, key=_rate), view)
    if trials:
        last = trials[-1]
        return Cell(wording.GLYPHS[last.state], words.TONES[last.state])
    expected = [num for configuration, num in predictions.items() if is_here(configuration)]
    if expected:
        return Cell(f"({format_bytes(min(expected)).removesuffix('iB')})", "$text-muted italic")
    is_candidate = any(is_here(configuration) for configuration in known)
    return Cell("·" if is_candidate else "", "$text-muted")


def _measured_cell(trial: TrialView, view: RunView) -> Cell:
    best = view.trial(view.best.number) if view.best else None
    rate = _rate(trial)
    is_best = best is not None and best.measured is not None and rate >= best.measured.samples_per_s
    text = f"{'★' if is_best else ''}{format_rate(rate)}"
    return Cell(text, "bold $text-accent" if is_best else "bold $text")


def _rate(trial: TrialView) -> float:
    return trial.measured.samples_per_s if trial.measured else 0.0
