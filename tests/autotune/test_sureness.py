"""A gain that is not settled is marked as such, everywhere by one rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune import sureness
from autotune.display import wording
from autotune.folding import fold
from tests.tui import answers, stories
from tui import words
from tui.run_now import RunNow

WIDE = replace(
    answers.confirmed(), speedup=1.05, speedup_ci95=(0.03, 5460.0), is_tie=True, settled=False
)


def test_an_interval_decides_what_is_said_of_a_gain() -> None:
    assert sureness.doubt((1.62, 1.73)) == ""
    assert sureness.doubt((0.98, 1.03)) == "perhaps no difference"
    assert sureness.doubt((1.1, 1.9)) == "not settled"
    assert sureness.doubt((0.03, 5460.0)) == "not settled, perhaps no difference"
    assert sureness.doubt((1.62, 1.73), settled=False) == "not settled"
    assert sureness.is_settled(answers.confirmed())
    assert not sureness.is_settled(replace(WIDE, settled=True)), "the interval alone says it"
    alone = replace(answers.confirmed(), baseline_number=2, speedup_ci95=(1.0, 1.0))
    assert sureness.is_settled(alone)
    assert not sureness.is_settled(replace(alone, samples_per_s_ci95=(4.0, 31.0)))


@pytest.mark.parametrize("width", [24, 52, 72, 92, 132])
def test_the_head_row_marks_it_in_every_width(width: int) -> None:
    view = fold(stories.records(stories.searching()))
    now = RunNow(view=replace(view, confirmed=WIDE))
    said = words.best(now, width)
    assert "◇ not settled" in said
    assert "◆" not in said
    assert "confirmed" not in said
    if width >= 52:
        assert len(said) <= width
        assert "or none" in said
    sure = words.best(RunNow(view=replace(view, confirmed=answers.confirmed())), width)
    assert "◆ confirmed" in sure
    told = wording.confirmation(WIDE, view)
    assert "not settled, perhaps no difference" in told
    assert "equally fast" not in told
