"""The clock of a run: it stands still while nobody works on it."""

from __future__ import annotations

from autotune.display import wording
from autotune.events import Event, HoldChanged, NoteAdded, Record, RunEnded
from autotune.folding import fold
from autotune.view import RunView
from tests.testing import runs


def told(*events: tuple[float, Event]) -> RunView:
    return fold([Record(seq=n, t_s=t_s, event=event) for n, (t_s, event) in enumerate(events)])


def test_the_time_between_two_engines_counts_for_nobody() -> None:
    view = told(
        (0.0, runs.started("one")),
        (70.0, RunEnded(reason="stopped", exit_code=130)),
        (500.0, runs.started("one", resumed=True)),
        (520.0, NoteAdded(text="n")),
    )
    assert [view.clock_s(t_s) for t_s in (10.0, 70.0, 300.0, 500.0, 520.0)] == [10, 70, 70, 70, 90]
    assert view.budget_s is not None
    assert view.budget_end_s == 70.0 + view.budget_s, "each engine has the whole budget"


def test_a_run_on_hold_spends_no_budget_once_its_trial_has_ended() -> None:
    opening = [(float(n), event) for n, event in enumerate(runs.opening("one"))]
    started, finished = runs.trial(0, runs.BASELINE, runs.measured(25.0), "baseline")
    view = told(
        *opening,
        (10.0, started),
        (12.0, HoldChanged(held=True)),
        (20.0, finished),
        (50.0, HoldChanged(held=False)),
        (55.0, NoteAdded(text="n")),
    )
    assert [view.clock_s(t_s) for t_s in (15.0, 20.0, 40.0, 55.0)] == [15, 20, 20, 25]


def test_what_is_over_the_budget_says_so() -> None:
    view = told((0.0, runs.started("one")))
    end_s = view.budget_end_s
    assert end_s is not None
    assert wording.clock(view, 5.0).startswith("00:05 of ")
    assert wording.clock(view, end_s + 16).endswith(" spent, finishing")
