"""Figures that cannot be are told as such, and end nobody who shows them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli import summary
from autotune.display import wording
from autotune.events import Event, Record, TrialProgressed
from autotune.folding import fold
from autotune.outcome import Failed, Measured, Speed
from autotune.sense import is_possible, possible
from tests.testing import runs
from tui.pictures import best_so_far, heat_map, memory_speed
from tui.pictures.bars import bar, sparkline
from tui.run_now import RunNow
from tui.trials import story

FINE = runs.measured(25.0)
IMPOSSIBLE: dict[str, Measured] = {
    "nan samples/s": replace(FINE, samples_per_s=math.nan),
    "0 samples/s": replace(FINE, samples_per_s=0.0),
    "-1 B of memory": replace(FINE, memory=replace(FINE.memory, total_bytes=-1)),
    "steps of 0 s": replace(
        FINE, speed=Speed(step_times_s=(0.0, 0.0), step_samples=(64, 64), step_tokens=(0, 0))
    ),
    "no timed step": replace(FINE, speed=Speed(step_times_s=(), step_samples=(), step_tokens=())),
    "an interval without end": replace(FINE, samples_per_s_ci95=(1.0, math.inf)),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_trial_that_cannot_be_is_told_as_failed_and_drawn_by_nobody(what: str) -> None:
    assert possible(FINE) is FINE
    events: list[Event] = [
        *runs.opening("one"),
        *runs.trial(0, runs.BASELINE, IMPOSSIBLE[what], "baseline"),
        *runs.trial(1, runs.BEST, runs.measured(40.0)),
    ]
    records = runs.records(events)
    view = fold(records)
    outcome = view.trials[0].outcome
    assert isinstance(outcome, Failed)
    assert what in outcome.cause
    assert [line for r in records for line in wording.lines(r.event, view) if what in line]
    for draw in (memory_speed.draw, best_so_far.draw, heat_map.draw):
        assert draw(view, 78, 10)
    for trial in view.trials:
        assert story.sections(trial, RunNow(view=view), 76)
    assert any("failed" in line for line in summary.trials(view))


def test_progress_and_verdicts_that_cannot_be_are_left_out() -> None:
    step = TrialProgressed(number=0, stage="speed", samples_per_s=math.nan, memory_bytes=1)
    assert not is_possible(step)
    assert not is_possible(replace(step, samples_per_s=1.0, memory_bytes=-1))
    assert is_possible(replace(step, samples_per_s=None, memory_bytes=None))
    confirmed = fold(
        runs.records([*runs.searching("one"), *runs.ending("one", Path("out"))])
    ).confirmed
    assert confirmed is not None
    assert is_possible(confirmed)
    assert not is_possible(replace(confirmed, speedup=math.nan))
    assert not is_possible(replace(confirmed, samples_per_s_ci95=(1.0, math.inf)))
    nonsense = Record(seq=0, t_s=0.0, event=replace(confirmed, samples_per_s=0.0))
    assert fold([nonsense]).confirmed is None


def test_bars_of_no_number_are_empty() -> None:
    assert bar(math.nan, 4) == bar(math.inf, 4) == "░░░░"
    assert sparkline([1.0, math.nan, 2.0]) == "▁█"
