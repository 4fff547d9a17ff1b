"""The number that people know a configuration by: that of its trial in the search."""

from __future__ import annotations

from autotune.view import RunView, TrialView


def first_of_its_kind(view: RunView, number: int) -> TrialView | None:
    """The trial of the search that a confirming one repeats, which is what people know."""
    trial = view.trial(number)
    if trial is None or not trial.is_repeat:
        return trial
    known = (
        other
        for other in view.trials
        if other.configuration == trial.configuration and not other.is_repeat
    )
    return next(known, trial)


def repeat(number: int, view: RunView) -> str:
    """What stands behind the name of a trial that was repeated: ` (repeat #4)`, or nothing."""
    known = first_of_its_kind(view, number)
    return "" if known is None or known.number == number else f" (repeat #{number})"


def known_number(number: int, view: RunView) -> int:
    """The number of the trial of the search that a trial repeats; its own where it is one."""
    known = first_of_its_kind(view, number)
    return number if known is None else known.number
