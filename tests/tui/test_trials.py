"""Trials as rows and text: columns, filter, order, story."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.events import Document, Origin, SpacePlanned
from autotune.folding import fold
from autotune.outcome import Exchange, Measured
from autotune.view import RunView, TrialView, without_engine
from tests.testing import runs
from tests.tui import answers, stories
from tui import words
from tui.run_now import RunNow
from tui.trials import columns, copying, readings, story
from tui.trials import filter as filters
from tui.trials.columns import BY_ID
from tui.trials.predictions import all_predicted_bytes

GIB = stories.GIB


@pytest.fixture(scope="module")
def view() -> RunView:
    return fold(stories.records([*stories.searching(), *stories.running_trial()]))


def numbers(view: RunView, text: str) -> list[int]:
    chosen = filters.parse(text)
    return [trial.number for trial in view.trials if chosen.matches(trial, view)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("state:oom", [3]),
        ("oom", [3]),
        ("state:measured", [0, 1, 2, 4, 5]),
        ("state:running", [9]),
        ("state:timeout", [7]),
        ("state:base", [0]),
        ("mbs>=32", [2, 3, 4, 5]),
        ("mbs>=32 !ckpt:off", [4, 5]),
        ("ckpt:every", [5]),
        ("acc=4", [1, 9]),
        ("acc = 4", [1, 9]),
        ("mbs >= 32 !ckpt:off", [4, 5]),
        ("state:oo", [3]),
        ("state:out-of-memory", [3]),
        ("state:baseline", [0]),
        ("predicted>1GiB", []),
        ("acc!=4 mbs<8", [6, 7, 8]),
        ("rate>40", [1, 2]),
        ("gain>=60%", [1, 2]),
        ("peak<2GiB", [0]),
        ("peak<=2GiB", [0, 1, 5]),
        ("step<1.6", [1, 2]),
        ("#7", [7]),
        ("!#7 mbs<4", [8]),
        ("neighbour", [9]),
        ("FINITE", [6]),
        ("nothing-of-the-kind", []),
        ("!", []),
    ],
)
def test_what_a_filter_lets_through(view: RunView, text: str, expected: list[int]) -> None:
    assert numbers(view, text) == expected


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("mbs>=x", "'x' is nothing that mbs"),
        ("colour=3", "colour cannot be compared"),
        ("mbs>>8", "'>8' is nothing that mbs can be compared with"),
        (">=8", "'>=8' compares nothing: write for example mbs>=8"),
        ("state:burnt", "state:burnt is none; there are oom, ok, timeout"),
        ("purpose:fun", "purpose:fun is none; there are baseline, search, confirm, memory"),
        ("stat:oom", "stat: asks for nothing, state:oom would"),
    ],
)
def test_a_filter_that_makes_no_sense_says_what_would(text: str, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        filters.parse(text)


def test_a_filter_that_no_trial_passes_hides_none(view: RunView) -> None:
    chosen = filters.parse("nothing-of-the-kind")
    assert chosen.in_force(view) == filters.Filter()
    some = filters.parse("mbs=8")
    assert some.in_force(view) is some
    assert filters.parse("RuntimeError:").in_force(view).text == "RuntimeError:", "plain words"


def test_repeats_are_shown_only_where_they_are_asked_for() -> None:
    events = [
        *stories.searching(2),
        *runs.trial(9, runs.BEST, runs.measured(39.0), "confirm"),
    ]
    view = fold(stories.records(events))
    assert numbers(view, "") == [0, 1]
    assert numbers(view, "purpose:confirm") == [9]
    row = columns.row(view.trials[-1], view, [BY_ID["state"]])
    assert row.strip() == "✓ confirmation"
    started = runs.trial(10, runs.BASELINE, runs.measured(25.0), "confirm")[:1]
    confirming = fold(stories.records([*events, *started]))
    assert numbers(confirming, "") == [0, 1, 10], "what runs is in sight"
    assert numbers(without_engine(confirming), "") == [0, 1]


def order(view: RunView, column: str, *, is_descending: bool) -> list[int]:
    found = columns.in_order(view.trials, view, BY_ID[column], is_descending=is_descending)
    return [trial.number for trial in found]


def test_trials_in_order_with_the_running_one_first_and_the_others_last(view: RunView) -> None:
    assert order(view, "rate", is_descending=True) == [9, 2, 1, 4, 5, 0, 8, 7, 6, 3]
    assert order(view, "rate", is_descending=False) == [9, 0, 5, 4, 1, 2, 8, 7, 6, 3]
    assert order(view, "mbs", is_descending=False)[:4] == [9, 8, 7, 6]
    assert order(view, "state", is_descending=False)[1] == 0


def test_running_trials_stand_in_the_order_of_the_sort() -> None:
    events = stories.searching(3)
    for number, (choice, outcome) in enumerate(stories.TRIALS[:3], start=5):
        events += runs.trial(number, choice, outcome, "confirm")[:1]
    confirming = fold(stories.records(events))
    assert order(confirming, "number", is_descending=True) == [7, 6, 5, 2, 1, 0]
    assert order(confirming, "number", is_descending=False) == [5, 6, 7, 0, 1, 2]
    assert order(confirming, "mbs", is_descending=True) == [7, 6, 5, 2, 1, 0]
    assert order(confirming, "rate", is_descending=True) == [7, 6, 5, 2, 1, 0], "none has a rate"


def test_a_row_says_what_was_measured(view: RunView) -> None:
    trial = view.trial(2)
    assert trial is not None
    chosen = columns.that_fit(80, view)
    assert [column.id for column in chosen] == [
        "number",
        "state",
        "mbs",
        "acc",
        "ckpt",
        "rate",
        "peak",
        "step",
        "gain",
    ]
    cells = " ".join(columns.row(trial, view, chosen).split())
    assert cells == "2 ✓ measured 32 2 off 41.8 3.50 GiB 1.53 s +67 %"
    lost = view.trial(3)
    assert lost is not None
    assert columns.row(lost, view, chosen).split()[-4:] == ["–"] * 4


@pytest.mark.parametrize("width", [20, 40, 58, 78, 98, 130])
def test_columns_fit_and_what_matters_stays(view: RunView, width: int) -> None:
    chosen = columns.that_fit(width, view)
    ids = [column.id for column in chosen]
    assert {"number", "state", "mbs", "rate"} <= set(ids)
    if width >= 40:
        assert sum(column.width + 1 for column in chosen) <= width
    assert "ranks" not in ids
    head = columns.head(chosen, BY_ID["rate"], is_descending=True)
    assert "samples/s↓" in head


def test_ranks_and_local_sgd_have_columns_where_they_differ(view: RunView) -> None:
    trial = view.trials[0]
    several = replace(trial.configuration, world_size=2, local_sgd_steps=8)
    both = RunView(trials=(trial, replace(trial, configuration=several)))
    ids = [c.id for c in columns.that_fit(100, both)]
    assert {"ranks", "sgd"} <= set(ids)


def told(trial: TrialView, view: RunView, width: int = 90) -> str:
    now = RunNow(view=view, is_alive=True)
    sections = story.sections(trial, now, width)
    return "\n".join(
        text for part in sections for text in (part.title, *(line.plain for line in part.lines))
    )


def test_the_story_of_a_measured_trial(view: RunView) -> None:
    trial = view.trial(2)
    assert trial is not None
    text = told(trial, view)
    assert "Measured 41.8 samples/s (95 %: 41.4 to 42.2), 669 tokens/s." in text
    assert "+67 % against the baseline's trial, before confirmation." in text
    assert "It is the best so far." in text
    assert "3.50 GiB of 4.00 GiB" in text
    assert "62 %  0.62 s" in text
    assert "a step, 1.53 s" in text
    assert "together   1.00 s, timed in steps of their own" in text
    assert "per_device_train_batch_size    8 → 32" in text
    assert "It took 1.50 s, 0.30 s of it beside its own steps." in text


def test_a_trial_says_why_it_is_not_the_best_though_its_rate_is_higher() -> None:
    ahead = runs.measured(40.4, 3 * GIB)
    events = [*stories.searching(2), *runs.trial(2, stories.TRIALS[2][0], ahead)]
    view = fold(stories.records(events))
    trial, best = view.trials[2], view.trials[1]
    assert view.best is not None
    assert view.best.number == 1
    text = told(trial, view)
    assert (
        "#1 is best though its rate is lower: compared batch by batch, #2 is not surely faster, "
        "and a tie goes to the one that leaves more memory free."
    ) in text
    for other in view.trials[:2]:
        assert "though its rate" not in told(other, view)
    small = replace(trial, outcome=runs.measured(40.4, GIB))
    assert "#2 is not surely faster." in told(small, view)
    apart = replace(trial, configuration=replace(trial.configuration, accumulation_steps=8))
    whole = replace(view, trials=(view.trials[0], best, apart))
    assert "what counts is what is learnt per second" in told(apart, whole)
    too_large = replace(trial, outcome=runs.measured(40.4, 5 * GIB))
    assert "though its rate" not in told(too_large, view)
    events += runs.trial(3, trial.configuration, stories.TRIALS[6][1], "confirm")
    assert "though its rate" not in told(trial, fold(stories.records(events)))


def test_the_story_of_trials_without_figures(view: RunView) -> None:
    texts = {}
    for trial in view.trials:
        if trial.measured is None:
            texts[trial.state] = told(trial, view)
    assert "It needs at least 5.00 GiB." in texts["out_of_memory"]
    assert "Ruled out since then: micro-batch 64 without checkpointing" in texts["out_of_memory"]
    assert "Failed: RuntimeError: loss is not finite" in texts["failed"]
    assert "Try a smaller learning rate." in texts["failed"]
    assert "Ended after 30.0 s" in texts["timed_out"]
    assert "Stopped: Stopped by request" in texts["stopped"]
    assert "It runs." in texts["running"]


def test_the_story_of_several_ranks_and_of_another_machine(view: RunView) -> None:
    trial = view.trial(1)
    assert trial is not None
    assert isinstance(trial.outcome, Measured)
    exchange = Exchange(
        compute_s=1.2,
        ddp_step_s=1.6,
        exposed_s=0.4,
        averaging_s=0.05,
        averaging_bytes=GIB,
        num_collectives_per_step=0.0,
    )
    elsewhere = replace(
        trial,
        outcome=replace(trial.outcome, exchange=exchange),
        origin=Origin(host="other", run="theirs", run_id="id", number=4),
        predicted={"total_bytes": 2 * GIB},
    )
    text = told(elsewhere, view)
    assert "25 %  0.40 s, waiting for other ranks" in text
    assert "0.05 s for 1.00 GiB" in text
    assert "Run on other by its run theirs, as #4 there." in text
    assert "predicted  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░░░░░░░░░░░░░░░ (2.00 GiB), as measured" in text
    assert "again, alone" not in text


def test_what_can_be_copied(view: RunView, tmp_path: Path) -> None:
    trial = view.trial(3)
    assert trial is not None
    now = RunNow(view=view, directory=stories.write(tmp_path, []))
    assert json.loads(copying.configuration(trial))["micro_batch_size"] == 64
    head, row = copying.row(trial, now).splitlines()
    assert head.split("\t")[0] == "#"
    assert len(head.split("\t")) == len(row.split("\t")) == len(columns.COLUMNS)
    assert "out of memory" in copying.outcome(trial, now)
    assert story.command_again(trial, now) == f"autotune trial {tmp_path / stories.NAME} 3"


def test_predictions_come_from_candidates_and_trials(view: RunView) -> None:
    assert view.space is not None
    first = dict(view.space.candidates[0]) | {"predicted": {"memory": {"total_bytes": GIB}}}
    space: SpacePlanned = replace(view.space, candidates=(first, *view.space.candidates[1:]))
    trial = replace(view.trials[1], predicted={"total_bytes": 2 * GIB})
    found = all_predicted_bytes(replace(view, space=space, trials=(trial,)))
    assert found == {runs.BASELINE: GIB, trial.configuration: 2 * GIB}
    assert all_predicted_bytes(view) == {}
    odd: Document = {
        "configuration": {"knob_of_a_newer_version": 1},
        "predicted": {"total_bytes": GIB},
    }
    foreseen = runs.foreseen()
    foreseen = replace(foreseen, candidates=(odd, *foreseen.candidates))
    told = all_predicted_bytes(replace(view, foreseen=foreseen))
    assert told == {runs.BASELINE: GIB, runs.BEST: 2 * GIB, runs.TOO_LARGE: 9 * GIB}


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """#1 was measured at 40.2 once and confirmed at 40.0; the baseline at 25.0 both times."""
    ending = stories.finishing(tmp_path_factory.mktemp("ended"))
    return fold(stories.records([*stories.searching(), *ending]))


def test_one_rule_says_which_figures_are_shown(confirmed: RunView) -> None:
    chosen = [BY_ID[id] for id in ("state", "rate", "peak", "step", "gain")]
    rows = {}
    for number in (0, 1, 2):
        trial = confirmed.trial(number)
        assert trial is not None
        rows[number] = " ".join(columns.row(trial, confirmed, chosen).split())
    assert rows == {
        0: "✓ baseline 25.0◆ 2.00 GiB 2.56 s ±0.0 %",
        1: "✓ confirmed 40.0◆ 2.00 GiB 1.60 s +60 %",
        2: "✓ measured 41.8 3.50 GiB 1.53 s +67 %",
    }
    best = readings.best(confirmed)
    assert best is not None
    assert best.number == 1, "what was confirmed, though another reading was higher"
    assert words.best(RunNow(view=confirmed)) == (
        "#1  16×4  40.0 samples/s ◆ confirmed  +60 % (95 %: +50 % to +70 %)"
    )
    text = told(best, confirmed)
    assert "◆ confirmed: 40.0 samples/s (95 %: 39.0 to 41.0)." in text
    assert "Before, once: Measured 40.2 samples/s" in text
    assert "a step of the search, 1.59 s\nlater      1.60 s a step, ◆ confirmed" in text
    assert "memory, of the confirmation" in text
    assert "before confirmation" not in text
    other = confirmed.trial(2)
    assert other is not None
    assert "It is the best so far." not in told(other, confirmed)


def test_a_confirming_trial_keeps_its_own_figures_and_lends_them_to_its_like() -> None:
    events = [
        *stories.searching(2),
        *runs.trial(7, runs.BEST, runs.measured(39.5, 2 * GIB), "confirm"),
        *runs.trial(8, runs.BASELINE, runs.measured(24.9, GIB), "confirm"),
        replace(answers.confirmed(), number=7, baseline_number=8, samples_per_s=39.0),
    ]
    view = fold(stories.records(events))
    shown = {t.number: readings.shown(t, view) for t in view.trials}
    assert {number: one.samples_per_s for number, one in shown.items() if one} == {
        0: 25.0,
        1: 39.0,
        7: 39.5,
        8: 24.9,
    }
    assert {number for number, one in shown.items() if one and one.is_confirmed} == {0, 1}
    best = readings.best(view)
    assert best is not None
    assert (best.number, readings.gain(best, view)) == (1, 1.67)


def test_a_gain_is_that_of_two_rates_of_the_same_part_of_the_run() -> None:
    """The baseline was read at 25.0 by the search and confirmed at 20.0."""
    events = [
        *stories.searching(3),
        *runs.trial(7, runs.BEST, runs.measured(39.5, 2 * GIB), "confirm"),
        *runs.trial(8, runs.BASELINE, runs.measured(20.1, GIB), "confirm"),
    ]
    told_of = replace(answers.confirmed(), number=7, baseline_number=8, baseline_samples_per_s=20.0)
    view = fold(stories.records([*events, told_of]))
    gains = {trial.number: readings.gain(trial, view) for trial in view.trials}
    assert gains == {0: 1.0, 1: 1.67, 2: pytest.approx(41.8 / 25.0), 7: None, 8: None}
    other, best = view.trial(2), view.trial(1)
    assert other is not None
    assert best is not None
    chosen = [BY_ID[id] for id in ("rate", "gain")]
    assert columns.row(other, view, chosen).split() == ["41.8", "+67", "%"]
    text = told(other, view)
    assert "+67 % against the baseline's trial, by one measurement of each." in text
    assert "before confirmation" not in text
    slow = replace(view, confirmed=replace(told_of, speedup=1.19))
    order = columns.in_order(slow.trials, slow, BY_ID["gain"], is_descending=True)
    assert [trial.number for trial in order][:3] == [2, 1, 0]
    assert "Trial 1 (repeat #7) confirmed against the baseline: +67 %" in told(best, view)


def test_a_baseline_that_was_not_confirmed_keeps_its_one_reading() -> None:
    confirmed = replace(
        answers.confirmed(), number=1, baseline_number=None, baseline_memory=None, speedup=1.0
    )
    view = fold(stories.records([*stories.searching(3), confirmed]))
    gains = {trial.number: readings.gain(trial, view) for trial in view.trials}
    assert gains == {
        0: 1.0,
        1: pytest.approx(40.2 / 25.0),
        2: pytest.approx(41.8 / 25.0),
    }
    assert not readings.is_baseline_confirmed(view)


def test_predicted_memory_stands_beside_the_measured_one_where_there_is_room(
    view: RunView,
) -> None:
    told_of = replace(view, foreseen=runs.foreseen())
    for width, window, is_there in ((78, 80, False), (98, 100, True), (80, 140, True)):
        ids = [c.id for c in columns.that_fit(width, told_of, window_cells=window)]
        assert ("predicted" in ids) is is_there, width
        if is_there:
            assert ids.index("predicted") == ids.index("peak") + 1
        assert "predicted" not in [c.id for c in columns.that_fit(width, view, window_cells=window)]
    cells = {}
    for number in (0, 2, 4):
        trial = told_of.trial(number)
        assert trial is not None
        cells[number] = [
            cell.strip()
            for cell in columns.cells(trial, told_of, [BY_ID["peak"], BY_ID["predicted"]])
        ]
    assert cells == {
        0: ["1.00 GiB", "(1.00 GiB)"],
        2: ["3.50 GiB", "–"],
        4: ["2.50 GiB", "(9.00 GiB)"],
    }


def test_the_story_holds_the_prediction_against_what_was_measured(view: RunView) -> None:
    told_of = replace(view, foreseen=runs.foreseen())
    wrong = told_of.trial(4)
    assert wrong is not None
    assert "(9.00 GiB), 260 % too much" in told(wrong, told_of)
    low = replace(wrong, predicted={"total_bytes": 2 * GIB})
    assert "(2.00 GiB), 20 % too little" in told(low, told_of)
    lost = told_of.trial(3)
    assert lost is not None
    lost = replace(lost, predicted={"total_bytes": 3 * GIB})
    assert "(3.00 GiB) of 4.00 GiB" in told(lost, told_of), "nothing was measured"
