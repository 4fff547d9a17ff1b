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
from tui.pictures.legend import legend
from tui.trials import readings
from tui.trials.columns import checkpointing
from tui.trials.predictions import all_predicted_bytes, candidates
from tui.trials.readings import rate

UNTRIED = "·"
_MOST_SIGN_ROWS = 3
_CELL = 9
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
    predictions = all_predicted_bytes(view)
    forms = sorted({c.checkpointing for c in known}, key=_weight)
    room = height - 1 - len(forms)
    signs = legend(_legend(view, predictions), width, most=max(1, min(_MOST_SIGN_ROWS, room)))
    forms = forms[: max(1, height - 1 - len(signs))]
    head = "".join(f"{size:>{_CELL}}" for size in sizes)
    lines = [Content.styled(f"{'samples/s':<{_NAME}}{head}", "$text-muted")]
    for form in forms:
        parts = [Content(f"{_form_name(form):<{_NAME}}")]
        for size in sizes:
            cell = _cell(view, known, predictions, size, form)
            parts.append(Content.styled(f"{cell.text:>{_CELL}}", cell.style))
        lines.append(Content("").join(parts))
    return [*lines, *signs]


def wanted_rows(view: RunView, width: int) -> int:
    """Rows that the whole map takes."""
    known = [*candidates(view), *(trial.configuration for trial in view.trials)]
    signs = legend(_legend(view, all_predicted_bytes(view)), width, most=_MOST_SIGN_ROWS)
    return 1 + len({c.checkpointing for c in known}) + len(signs)


def _legend(view: RunView, predictions: Mapping[Configuration, int]) -> list[str]:
    """What a square may hold; of the states only those that are there."""
    parts = ["samples/s measured", "★ best"]
    if view.confirmed is not None:
        parts.append(readings.signed(view.confirmed))
    if predictions:
        parts.append("(…) predicted peak")
    there = {trial.state for trial in view.trials}
    parts += [
        f"{wording.GLYPHS[state]} {wording.WORDS[state]}"
        for state in ("running", "out_of_memory", "failed", "timed_out", "stopped")
        if state in there
    ]
    untried = "not tried" if predictions else "fit unknown before a trial"
    return [*parts, f"{UNTRIED} {untried}"]


def _form_name(form: Checkpointing) -> str:
    word = checkpointing(form)
    return "no ckpt" if word == "off" else f"ckpt {word}"


def _weight(form: Checkpointing) -> tuple[float, bool]:
    return (1 / form.every_n_layers if form.every_n_layers else 0.0, form.offload)


def _around_best(sizes: Sequence[int], view: RunView, most: int) -> list[int]:
    """As many sizes as fit, those near the best one."""
    if len(sizes) <= most:
        return list(sizes)
    best = readings.best(view) or view.baseline
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

    # What was repeated stands under the trial that the search made of it.
    trials = [t for t in view.trials if is_here(t.configuration) and not t.is_repeat]
    measured = [trial for trial in trials if trial.measured is not None]
    if measured:
        return _measured_cell(measured, view)
    if trials:
        last = trials[-1]
        return Cell(wording.GLYPHS[last.state], words.TONES[last.state])
    expected = [num for configuration, num in predictions.items() if is_here(configuration)]
    if expected:
        return Cell(f"({format_bytes(min(expected)).removesuffix('iB')})", "$text-muted italic")
    is_candidate = any(is_here(configuration) for configuration in known)
    return Cell(UNTRIED if is_candidate else "", "$text-muted")


def _measured_cell(trials: Sequence[TrialView], view: RunView) -> Cell:
    """The best one of the run where it is among them, else the fastest."""
    best = readings.best(view)
    chosen = best.configuration if best is not None else None
    trial = max(trials, key=lambda one: (one.configuration == chosen, rate(one, view)))
    is_best, found = trial.configuration == chosen, readings.shown(trial, view)
    is_again = found is not None and found.is_confirmed and view.confirmed is not None
    sign = readings.sign(view.confirmed) if is_again and view.confirmed else ""
    text = f"{'★' if is_best else ''}{format_rate(rate(trial, view))}{sign}"
    return Cell(text, "bold $text-accent" if is_best else "bold $text")
