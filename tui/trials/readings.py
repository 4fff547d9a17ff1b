"""Which figures of a configuration are shown: one rule for headline, table, pictures and story.

What was confirmed counts: the median of several fresh processes, interleaved. Until then, and for
every other configuration, it is the one reading of the search. Confirmed figures bear a mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.configuration import Configuration
from autotune.display import wording
from autotune.display.naming import first_of_its_kind
from autotune.events import Confirmed
from autotune.outcome import MemoryUse
from autotune.sureness import is_settled
from autotune.view import RunView, TrialView

CONFIRMED, UNSETTLED = "◆", "◇"
"""Stand behind a figure that was confirmed, and behind one that was measured again without being
settled; the words beside it say so."""
CONFIRMED_WORD, UNSETTLED_WORD = "confirmed", "not settled"


def sign(confirmed: Confirmed) -> str:
    """What stands behind a figure that was measured again."""
    return CONFIRMED if is_settled(confirmed) else UNSETTLED


def word(confirmed: Confirmed) -> str:
    """The same in words."""
    return CONFIRMED_WORD if is_settled(confirmed) else UNSETTLED_WORD


def signed(confirmed: Confirmed) -> str:
    """Sign and word."""
    return f"{sign(confirmed)} {word(confirmed)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The figures of one configuration."""

    samples_per_s: float
    samples_per_s_ci95: tuple[float, float]
    memory: MemoryUse
    is_confirmed: bool = False

    @property
    def half_interval(self) -> float | None:
        """Half of the 95 % interval of the rate, as a part of the rate."""
        if self.samples_per_s <= 0:
            return None
        low, high = self.samples_per_s_ci95
        return (high - low) / 2 / self.samples_per_s


def shown(trial: TrialView, view: RunView) -> Shown | None:
    """The figures of a trial's configuration; None where nothing was measured.

    A trial of the confirmation itself keeps its own.
    """
    measured = trial.measured
    if measured is None:
        return None
    if view.confirmed is not None and not trial.is_repeat:
        again = _confirmed_of(view, view.confirmed).get(trial.configuration)
        if again is not None:
            return again
    return Shown(
        samples_per_s=measured.samples_per_s,
        samples_per_s_ci95=measured.samples_per_s_ci95,
        memory=measured.memory,
    )


def rate(trial: TrialView, view: RunView) -> float:
    """Samples per second as they are shown; 0 where nothing was measured."""
    found = shown(trial, view)
    return found.samples_per_s if found is not None else 0.0


def gain(trial: TrialView, view: RunView) -> float | None:
    """The rate over that of the baseline, both measured in the same part of the run.

    Of what was confirmed beside the baseline it is the ratio by pairs, which is surer than that of
    the medians. What the search alone has measured is held against what the search measured of the
    baseline: confirmation came at another time, when the machine may have been faster or slower.
    None where one of both has no rate, and of a trial of the confirmation itself.
    """
    if trial.is_repeat:
        return None
    found = shown(trial, view)
    if found is None:
        return None
    confirmed = view.confirmed
    if found.is_confirmed and confirmed is not None and confirmed.baseline_number is not None:
        is_baseline = trial.configuration == view.baseline.configuration if view.baseline else False
        return 1.0 if is_baseline else confirmed.speedup
    return wording.speedup(trial, view)


def is_baseline_confirmed(view: RunView) -> bool:
    """Whether the baseline was measured again as well."""
    base = shown(view.baseline, view) if view.baseline else None
    return base is not None and base.is_confirmed


def best(view: RunView) -> TrialView | None:
    """The confirmed configuration's trial, before that the best one of the search."""
    if view.confirmed is not None:
        return first_of_its_kind(view, view.confirmed.number)
    return view.trial(view.best.number) if view.best is not None else None


_Key = tuple[Confirmed, tuple[TrialView, ...]]
_Known = Mapping[Configuration, Shown]
_latest: list[tuple[_Key, _Known]] = []
"""What was asked for last: a table asks for the same view again and again."""


def _confirmed_of(view: RunView, confirmed: Confirmed) -> _Known:
    """What was confirmed, by configuration: the chosen one, and the baseline beside it."""
    if _latest:
        (known_confirmed, known_trials), known = _latest[0]
        if known_confirmed is confirmed and known_trials is view.trials:
            return known
    found: dict[Configuration, Shown] = {}
    base, base_memory = confirmed.baseline_number, confirmed.baseline_memory
    baseline = _configuration(view, base) if base is not None else None
    if baseline is not None and base_memory is not None:
        found[baseline] = Shown(
            samples_per_s=confirmed.baseline_samples_per_s,
            samples_per_s_ci95=confirmed.baseline_samples_per_s_ci95,
            memory=base_memory,
            is_confirmed=True,
        )
    chosen = _configuration(view, confirmed.number)
    if chosen is not None:
        found[chosen] = Shown(
            samples_per_s=confirmed.samples_per_s,
            samples_per_s_ci95=confirmed.samples_per_s_ci95,
            memory=confirmed.memory,
            is_confirmed=True,
        )
    _latest[:] = [((confirmed, view.trials), found)]
    return found


def _configuration(view: RunView, number: int) -> Configuration | None:
    trial = view.trial(number)
    return trial.configuration if trial is not None else None
