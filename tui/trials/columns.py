"""The columns of the table of trials: what each says, how it sorts, which ones fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from autotune.configuration import Checkpointing
from autotune.display import wording
from autotune.units import format_bytes, format_change, format_rate, format_seconds
from autotune.view import RunView, TrialView
from tui.trials import readings
from tui.trials.predictions import has_predictions, predicted_bytes
from tui.trials.readings import gain, shown

Cell: TypeAlias = Callable[[TrialView, RunView], str]
SortValue: TypeAlias = Callable[[TrialView, RunView], float | str | None]
"""What to sort by; None comes last, whichever way round."""

NOTHING = "–"
DESCENDING, ASCENDING = "↓", "↑"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column."""

    id: str
    head: str
    width: int
    """Cells, the blank before the next column left out."""
    cell: Cell
    value: SortValue
    to_the_right: bool = True
    worth: int = 0
    """What is worth least is left out first where not everything fits; 9 always stays."""
    is_descending: bool = False
    """Which way round it is sorted first."""
    is_predicted: bool = False
    """Whether it says what nobody measured, and so has to look different."""


def checkpointing(form: Checkpointing) -> str:
    """A form of checkpointing in a cell: off, every layer, every 2nd, 3rd, nth layer."""
    every = form.every_n_layers
    if every is None:
        return "off"
    word = {1: "every", 2: "2nd", 3: "3rd"}.get(every, f"{every}th")
    return f"{word}+host" if form.offload else word


def state(trial: TrialView, view: RunView) -> str:
    """A trial's state with its glyph, in the words that stand for it on every screen."""
    if trial.purpose in ("confirm", "memory") and trial.measured is not None:
        word = "confirmation" if trial.purpose == "confirm" else "memory check"
        return f"{wording.GLYPHS[trial.state]} {word}"
    if trial.purpose == "search" and _is_confirmed(trial, view) and view.confirmed is not None:
        return f"{wording.GLYPHS[trial.state]} {readings.word(view.confirmed)}"
    return wording.state(trial)


def _is_confirmed(trial: TrialView, view: RunView) -> bool:
    found = shown(trial, view)
    return found is not None and found.is_confirmed


def _rate(trial: TrialView, view: RunView) -> float | None:
    found = shown(trial, view)
    return found.samples_per_s if found is not None else None


def _rate_cell(trial: TrialView, view: RunView) -> str:
    found = _rate(trial, view)
    if found is None:
        return NOTHING
    if view.confirmed is None:
        return format_rate(found)
    # Figures stay below one another, with the mark and without.
    sign = readings.sign(view.confirmed) if _is_confirmed(trial, view) else " "
    return f"{format_rate(found)}{sign}"


def _half(trial: TrialView, view: RunView) -> float | None:
    found = shown(trial, view)
    return found.half_interval if found is not None else None


def _peak(trial: TrialView, view: RunView) -> float | None:
    found = shown(trial, view)
    return found.memory.total_bytes if found is not None else None


def _step(trial: TrialView, view: RunView) -> float | None:
    found = shown(trial, view)
    if trial.measured is None or found is None:
        return None
    if not found.is_confirmed or found.samples_per_s <= 0:
        return trial.measured.speed.step_s
    return trial.configuration.global_batch_size / found.samples_per_s


def _predicted(trial: TrialView, view: RunView) -> float | None:
    return predicted_bytes(trial, view)


def _predicted_cell(trial: TrialView, view: RunView) -> str:
    found = predicted_bytes(trial, view)
    return NOTHING if found is None else f"({format_bytes(found)})"


def _shown(value: SortValue, words: Callable[[float], str]) -> Cell:
    def cell(trial: TrialView, view: RunView) -> str:
        found = value(trial, view)
        return words(found) if isinstance(found, int | float) else NOTHING

    return cell


def _spread(trial: TrialView, view: RunView) -> str:
    half = _half(trial, view)
    return NOTHING if half is None else f"{half * 100:.0f} %"


COLUMNS: tuple[Column, ...] = (
    Column(
        id="number",
        head="#",
        width=4,
        cell=lambda trial, view: str(trial.number),
        value=lambda trial, view: trial.number,
        worth=9,
    ),
    Column(
        id="state",
        head="state",
        width=15,
        cell=state,
        value=lambda trial, view: state(trial, view)[2:],
        to_the_right=False,
        worth=9,
    ),
    Column(
        id="mbs",
        head="mbs",
        width=4,
        cell=lambda trial, view: str(trial.configuration.micro_batch_size),
        value=lambda trial, view: trial.configuration.micro_batch_size,
        worth=9,
    ),
    Column(
        id="acc",
        head="acc",
        width=4,
        cell=lambda trial, view: str(trial.configuration.accumulation_steps),
        value=lambda trial, view: trial.configuration.accumulation_steps,
        worth=5,
    ),
    Column(
        id="ranks",
        head="ranks",
        width=6,
        cell=lambda trial, view: str(trial.configuration.world_size),
        value=lambda trial, view: trial.configuration.world_size,
        worth=6,
    ),
    Column(
        id="ckpt",
        head="ckpt",
        width=6,
        cell=lambda trial, view: checkpointing(trial.configuration.checkpointing),
        value=lambda trial, view: trial.configuration.checkpointing.every_n_layers or 0,
        to_the_right=False,
        worth=8,
    ),
    Column(
        id="sgd",
        head="sgd",
        width=4,
        cell=lambda trial, view: str(trial.configuration.local_sgd_steps),
        value=lambda trial, view: trial.configuration.local_sgd_steps,
        worth=6,
    ),
    Column(
        id="rate",
        head="samples/s",
        width=10,
        cell=_rate_cell,
        value=_rate,
        worth=9,
        is_descending=True,
    ),
    Column(
        id="spread",
        head="±",
        width=5,
        cell=_spread,
        value=_half,
        worth=2,
    ),
    Column(id="peak", head="peak", width=8, cell=_shown(_peak, format_bytes), value=_peak, worth=7),
    Column(
        id="predicted",
        head="predicted",
        width=10,
        cell=_predicted_cell,
        value=_predicted,
        worth=4,
        is_predicted=True,
    ),
    Column(
        id="step", head="step", width=8, cell=_shown(_step, format_seconds), value=_step, worth=3
    ),
    Column(
        id="gain",
        head="vs base",
        width=8,
        cell=_shown(gain, format_change),
        value=gain,
        worth=8,
        is_descending=True,
    ),
    Column(
        id="why",
        head="why",
        width=24,
        cell=lambda trial, view: trial.why,
        value=lambda trial, view: trial.why,
        to_the_right=False,
        worth=1,
    ),
)
"""Every column, as they stand from the left."""

BY_ID = {column.id: column for column in COLUMNS}
FASTEST_FIRST = "rate"
"""The column that the table is sorted by at first."""


MIN_CELLS_FOR_PREDICTED = 100
"""Columns of a window in which what was predicted stands beside what was measured."""


def that_fit(width: int, view: RunView, *, window_cells: int | None = None) -> tuple[Column, ...]:
    """The columns for so many cells; what is the same in every trial is not worth a column.

    Args:
        width: Cells of a row.
        view: The run.
        window_cells: Columns of the window; `width` by default.
    """
    same = _constant(view.trials)
    if (window_cells or width) < MIN_CELLS_FOR_PREDICTED or not has_predictions(view):
        same.add("predicted")
    chosen = [column for column in COLUMNS if column.id not in same]
    while sum(column.width + 1 for column in chosen) > width:
        least = min(chosen, key=lambda column: column.worth)
        if least.worth == 9:
            break
        chosen.remove(least)
    return tuple(chosen)


def _constant(trials: Iterable[TrialView]) -> set[str]:
    ranks = {trial.configuration.world_size for trial in trials}
    steps = {trial.configuration.local_sgd_steps for trial in trials}
    return ({"ranks"} if ranks <= {1} else set()) | ({"sgd"} if steps <= {1} else set())


def in_order(
    trials: Iterable[TrialView], view: RunView, column: Column, *, is_descending: bool
) -> list[TrialView]:
    """The trials by a column: the running ones first, then the others, each in the same order.

    Those without a value come last, newest first.
    """
    found = list(trials)
    running = [trial for trial in found if trial.state == "running"]
    others = [trial for trial in found if trial.state != "running"]
    return [
        *_sorted(running, view, column, is_descending=is_descending),
        *_sorted(others, view, column, is_descending=is_descending),
    ]


def _sorted(
    trials: Iterable[TrialView], view: RunView, column: Column, *, is_descending: bool
) -> list[TrialView]:
    valued, others = [], []
    for trial in trials:
        value = column.value(trial, view)
        if value is None:
            others.append(trial)
        else:
            valued.append((value, trial))
    valued.sort(key=lambda pair: (pair[0], -pair[1].number), reverse=is_descending)
    others.sort(key=lambda trial: -trial.number)
    return [*(trial for _, trial in valued), *others]


def row(trial: TrialView, view: RunView, columns: Sequence[Column]) -> str:
    """A trial as one row of text."""
    return " ".join(cells(trial, view, columns))


def cells(trial: TrialView, view: RunView, columns: Sequence[Column]) -> list[str]:
    """The cells of a trial's row, each as wide as its column."""
    return [_cell(column, column.cell(trial, view)) for column in columns]


def head(columns: Sequence[Column], sorted_by: Column, *, is_descending: bool) -> str:
    """The row above; the column that is sorted by bears an arrow."""
    return " ".join(
        _cell(
            column,
            _with_arrow(column, is_descending) if column.id == sorted_by.id else column.head,
        )
        for column in columns
    )


def _with_arrow(column: Column, is_descending: bool) -> str:
    arrow = DESCENDING if is_descending else ASCENDING
    return column.head[: column.width - 1] + arrow


def _cell(column: Column, text: str) -> str:
    if len(text) > column.width:
        text = text[: column.width - 1] + "…"
    return text.rjust(column.width) if column.to_the_right else text.ljust(column.width)


def column_at(columns: Sequence[Column], x: int) -> Column | None:
    """The column that a cell of the row belongs to."""
    right = 0
    for column in columns:
        right += column.width + 1
        if x < right:
            return column
    return None
