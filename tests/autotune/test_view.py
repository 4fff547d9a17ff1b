from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.events import (
    Event,
    HoldChanged,
    LinkProbed,
    NoteAdded,
    Origin,
    ProbeStarted,
    RecommendationMade,
    Record,
    RegionClosed,
    RunEnded,
    SearchEnded,
    StudyOpened,
    TrialFinished,
    TrialProgressed,
    TrialReceived,
    TrialsAwaited,
    TrialStarted,
    WarningRaised,
    record_adapter,
)
from autotune.folding import fold
from autotune.outcome import Stopped
from autotune.view import RunView, bytes_of, how_many, trials_and_repeats, without_engine
from probes.link import Link
from tests.testing import runs

WHOLE = [*runs.searching("one"), *runs.ending("one", Path("out"))]
RECEIVED = TrialReceived(
    number=7,
    purpose="search",
    configuration=runs.BEST.to_json(),  # type: ignore[arg-type]
    outcome=runs.measured(41.0),
    origin=Origin(host="node2", run="one", run_id="r", number=3),
)
PROBING = ProbeStarted(probe="arithmetic rate", number=4, num_probes=5, readings=({"name": "r"},))
EVENTS: list[Event] = [
    *WHOLE,
    *runs.trial(5, runs.BEST, Stopped(cause="Stopped.")),
    *runs.trial(6, runs.BEST, runs.measured(3.0), "confirm"),
    TrialProgressed(number=5, stage="speed", step=1),
    PROBING,
    RegionClosed(what="w", reason="r", num_removed=2, trial=1),
    WarningRaised(cause="c"),
    HoldChanged(held=True),
    HoldChanged(held=False),
    NoteAdded(text="n"),
    RECEIVED,
    StudyOpened(
        study="s",
        storage="sqlite:///s.db",
        num_trials=1,
        num_running=0,
        hosts=("node2",),
        again=False,
    ),
    TrialsAwaited(configurations=(runs.BEST.to_json(),), hosts=("node2",)),  # type: ignore[arg-type]
    LinkProbed(link=Link(backend="gloo", num_ranks=2)),
    runs.foreseen({"what": "evaluation", "reason": "r"}),
    runs.started("one", resumed=True),
]


def _started(number: int) -> TrialStarted:
    event = runs.trial(number, runs.BEST, runs.measured(1.0))[0]
    assert isinstance(event, TrialStarted)
    return event


@given(st.lists(st.sampled_from(EVENTS), max_size=30), st.integers(0, 30))
def test_a_story_folds_alike_in_any_order_live_and_from_disk(events: list[Event], cut: int) -> None:
    records = runs.records(events)
    whole = fold(records)
    assert fold(records[cut:], fold(records[:cut])) == whole
    stored = [record_adapter().dump_json(record) for record in records]
    assert fold(record_adapter().validate_json(line) for line in stored) == whole


def test_a_probe_is_known_while_it_runs() -> None:
    view = fold(runs.records([WHOLE[0], PROBING]))
    assert (view.stage, view.probing) == ("probing", PROBING)
    assert fold(runs.records([WHOLE[0], PROBING, WHOLE[1]])).probing is None
    assert (
        fold(runs.records([WHOLE[0], PROBING, runs.started("one", resumed=True)])).probing is None
    )


def test_the_whole_story() -> None:
    view = fold(runs.records(WHOLE))
    assert view.run == "one"
    assert view.stage == "done"
    assert [trial.state for trial in view.trials] == ["measured", "measured", "out_of_memory"]
    assert view.baseline is not None
    assert view.baseline.number == 0
    assert view.best is not None
    assert view.best.speedup == 1.6
    assert view.recommendation == runs.answer("one")
    assert view.running is None
    assert (view.num_search_trials, view.budget_trials, view.budget_s) == (3, 12, 60.0)
    assert view.next_seq == len(WHOLE)


def test_what_is_predicted_is_known_of_candidates_and_of_trials() -> None:
    started, finished = runs.trial(1, runs.BEST, runs.measured(40.0))
    assert isinstance(started, TrialStarted)
    told: list[Event] = [
        *runs.opening("one"),
        runs.foreseen(),
        replace(started, predicted={"total_bytes": 7}),
    ]
    view = fold(runs.records(told))
    assert view.foreseen == runs.foreseen()
    assert view.running is not None
    assert view.running.predicted_bytes == 7
    assert fold(runs.records([*told, finished])).trials[0].predicted_bytes == 7
    assert bytes_of({"memory": {"total_bytes": 5}}) == 5
    assert bytes_of({"total_bytes": True}) is None


def test_what_an_engine_rules_out_again_is_known_once() -> None:
    region = RegionClosed(what="w", reason="predicted", num_removed=2, trial=None)
    resumed: list[Event] = [region, runs.started("one", resumed=True), region]
    assert fold(runs.records([*runs.opening("one"), *resumed])).closed == (region,)


def test_stages_follow_the_events() -> None:
    opening = runs.opening("one")
    stages = [fold(runs.records(opening[: n + 1])).stage for n in range(len(opening))]
    assert stages == ["probing", "loading", "loading", "loading", "searching"]
    confirming = runs.trial(3, runs.BEST, runs.measured(1.0), "confirm")[0]
    assert fold(runs.records([*opening, confirming])).stage == "confirming"
    made = RecommendationMade(document=runs.answer("one"))
    assert fold(runs.records([*opening, confirming, made])).stage == "exporting"


def test_an_engine_that_goes_on_says_anew_why_its_search_ended() -> None:
    ended = SearchEnded(reason="the time is spent", num_untried=3)
    before = fold(runs.records([*runs.searching("one"), ended]))
    assert before.search_ended == ended
    again = fold(runs.records([runs.started("one", resumed=True)]), before)
    assert again.search_ended is None


def test_progress_belongs_to_the_running_trial_alone() -> None:
    here = TrialProgressed(number=4, stage="memory")
    elsewhere = TrialProgressed(number=3, stage="speed")
    view = fold(runs.records([*runs.opening("one"), _started(4), here, elsewhere]))
    assert view.progress == here
    assert view.running is not None
    assert view.running.number == 4
    finished = runs.trial(4, runs.BEST, runs.measured(1.0))[1]
    assert fold(runs.records([finished, here]), view).progress is None


def test_progress_does_not_move_the_place_in_the_journal() -> None:
    view = fold(runs.records([runs.started("one")]))
    progress = Record(seq=1, t_s=1.0, event=TrialProgressed(number=0, stage="speed"))
    assert fold([progress], view).next_seq == 1


def test_a_resumed_run_forgets_the_trial_that_was_running_and_keeps_its_first_start() -> None:
    first = runs.records([*runs.searching("one"), _started(3)])
    last = first[-1]
    assert fold(first).running is not None
    again = Record(seq=last.seq + 1, t_s=500.0, event=runs.started("one", resumed=True))
    view = fold([*first, again])
    assert view.running is None
    assert [trial.number for trial in view.trials] == [0, 1, 2]
    assert view.created_unix_s == fold(first).created_unix_s
    assert view.started_s == 500.0
    assert view.stage == "probing"


def test_an_end_is_forgotten_when_the_run_goes_on() -> None:
    ended = [*runs.searching("one"), RunEnded(reason="stopped", exit_code=130)]
    view = fold(runs.records([*ended, runs.started("one", resumed=True)]))
    assert view.ended is None


def test_a_trial_whose_start_was_not_seen_is_placed_by_its_duration() -> None:
    finished = runs.trial(3, runs.BEST, runs.measured(1.0))[1]
    assert isinstance(finished, TrialFinished)
    view = fold([Record(seq=0, t_s=10.0, event=finished)])
    trial = view.trial(3)
    assert trial is not None
    assert trial.started_s == 8.5


def test_the_same_warning_is_kept_once() -> None:
    warning = WarningRaised(cause="c", remedy="r")
    assert fold(runs.records([warning, warning])).warnings == (warning,)


def test_a_warning_in_other_figures_takes_the_place_of_the_earlier_one() -> None:
    busy = [
        WarningRaised(cause=f"Other work keeps it busy: a load of {load} on 2 cores.", remedy=None)
        for load in ("2.1", "3.4")
    ]
    lost = [
        WarningRaised(cause=f"Trial {number} (8×4) did not hold: killed.", remedy=None)
        for number in (3, 5)
    ]
    view = fold(runs.records([busy[0], *lost, busy[1]]))
    assert view.warnings == (busy[1], *lost)


def test_nothing_folds_to_nothing() -> None:
    view = fold([])
    assert view == RunView()
    assert view.stage == "new"
    assert view.budget_s is None
    assert view.baseline is None
    assert view.trial(0) is None


def test_a_trial_of_another_engine_is_told_apart_and_costs_no_budget() -> None:
    view = fold(runs.records([*runs.searching("one"), RECEIVED]))
    received = view.trial(7)
    assert received is not None
    assert received.origin == RECEIVED.origin
    assert (received.measured, received.wall_s) == (RECEIVED.outcome, None)
    assert view.num_search_trials == 3
    assert view.running is None
    resumed = fold(runs.records([runs.started("one", resumed=True)]), view)
    assert resumed.trial(7) == received


def test_what_ran_when_its_engine_died_is_lost() -> None:
    here = TrialProgressed(number=3, stage="speed")
    view = fold(runs.records([*runs.searching("one"), _started(3), here]))
    left = without_engine(view)
    assert [trial.state for trial in left.trials][-1] == "lost"
    assert (left.running, left.progress) == (None, None)
    assert (view.num_search_trials, left.num_search_trials) == (4, 3)
    assert left.trials[:3] == view.trials[:3]
    over = fold(runs.records(runs.searching("one")))
    assert without_engine(over) is over


def test_a_repeat_is_no_trial_whatever_becomes_of_it() -> None:
    stopped = Stopped(cause="Stopped by request.")
    events = [
        *runs.searching("one"),
        *runs.trial(3, runs.BEST, stopped, "confirm"),
        *runs.trial(4, runs.BEST, runs.measured(40.0), "memory"),
        *runs.trial(5, runs.BASELINE, runs.measured(25.0), "confirm")[:1],
    ]
    view = fold(runs.records(events))
    assert how_many(view.trials) == "3 trials and 3 repeats"
    lost = without_engine(view)
    assert how_many(lost.trials) == "3 trials and 3 repeats"
    assert lost.num_search_trials == view.num_search_trials == 3


@pytest.mark.parametrize(
    ("numbers", "others", "said"),
    [
        ((0, 0), (0, 0), "0 trials"),
        ((1, 0), (0, 0), "1 trial"),
        ((1, 1), (0, 0), "1 trial and 1 repeat"),
        ((0, 2), (0, 0), "2 repeats"),
        ((5, 3), (2, 1), "5 trials, 2 of other runs, 1 lost trial and 3 repeats"),
    ],
)
def test_trials_in_words(numbers: tuple[int, int], others: tuple[int, int], said: str) -> None:
    of_others, lost = others
    assert trials_and_repeats(*numbers, num_of_others=of_others, num_lost=lost) == said
