"""What trials close, and what they do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.configuration import Checkpointing, Configuration
from autotune.events import TrialFinished
from autotune.folding import fold
from autotune.journal import Journal, read
from autotune.outcome import Failed, Measured, Outcome, OutOfMemory, Stopped, TimedOut
from autotune.search.evidence.closing import with_trial, with_trials
from autotune.search.evidence.finished import FinishedTrial
from autotune.search.evidence.history import History, finished_trials
from tests.testing.landscapes import FORMS, MIB, make_space, measured

SPACE = make_space(24)
SIZES = (1, 2, 3, 4, 6, 8, 12, 24)
FULL = OutOfMemory(where="device", cause="the allocator refused 1 GiB")
KILLED = OutOfMemory(where="host", cause="the process was killed", is_certain=False)
ENDED = Failed(cause="the process was killed", is_killed=True)


def at(size: int, every_n_layers: int | None = None) -> Configuration:
    return next(
        c
        for c in SPACE.candidates
        if c.micro_batch_size == size and c.checkpointing.every_n_layers == every_n_layers
    )


def history(
    *trials: tuple[Configuration, Outcome], usable_bytes: int | None = None, gradient_bytes: int = 0
) -> History:
    return with_trials(
        History(space=SPACE, usable_bytes=usable_bytes, gradient_bytes=gradient_bytes),
        (
            FinishedTrial(number=n, purpose="search", configuration=c, outcome=o)
            for n, (c, o) in enumerate(trials)
        ),
    )


def fits(num_mib: int = 100, step_s: float = 1.0) -> Measured:
    return measured([step_s] * 4, 24, num_mib * MIB)


def closed(known: History) -> dict[int | None, list[int]]:
    """Closed sizes by checkpointing form; forms with none left out."""
    found: dict[int | None, list[int]] = {}
    for every in FORMS:
        sizes = [s for s in SIZES if known.closed_by(at(s, every)) is not None]
        if sizes:
            found[every] = sizes
    return found


def test_nothing_is_closed_at_first() -> None:
    known = history()
    assert known.open_candidates == SPACE.candidates
    assert known.measured == ()
    assert known.baseline is None


def test_out_of_memory_closes_larger_sizes_and_forms_that_keep_more() -> None:
    known = history((at(8, 2), FULL))
    assert closed(known) == {None: [8, 12, 24], 3: [8, 12, 24], 2: [12, 24]}
    (region,) = known.regions
    assert region.what == (
        "micro-batch size 8 and larger with checkpointing every 2nd layer or what keeps more memory"
    )
    assert region.reason == (
        "trial 0 ran out of memory at 8×3, checkpointing every 2nd layer: "
        "the allocator refused 1 GiB"
    )
    assert region.by_memory
    assert region.event.num_removed == 8
    assert region.event.trial == 0
    assert known.is_tried(at(8, 2))
    assert known.is_open(at(6, 2))
    assert known.is_open(at(8, 1))


def test_a_second_out_of_memory_counts_only_what_it_adds() -> None:
    known = history((at(8), FULL), (at(4), FULL))
    assert [r.event.num_removed for r in known.regions] == [2, 1]
    assert closed(known) == {None: [6, 12, 24]}
    again = history((at(4), FULL), (at(8, 1), FULL), (at(12, 1), FULL))
    assert [r.trial for r in again.regions] == [0, 1]


def test_the_whole_batch_at_once_may_fit_where_half_of_it_does_not() -> None:
    known = history((at(2), FULL), gradient_bytes=10**9)
    assert closed(known) == {None: [3, 4, 6, 8, 12]}
    assert known.is_open(at(24))
    known = history((at(24), FULL), gradient_bytes=10**9)
    assert known.regions == ()
    assert not known.is_open(at(24))


def test_a_line_through_two_trials_closes_what_it_puts_above_the_limit() -> None:
    known = history((at(2), fits(200)), (at(4), fits(300)), usable_bytes=700 * MIB)
    # 50 MiB a sample: 12 needs 700 MiB, which may fit, and 24 needs 1300.
    assert closed(known) == {None: [24]}
    (region,) = known.regions
    assert region.reason == (
        "predicted to need at least 1.27 GiB by the line through trials 0 and 1, where 700 MiB "
        "may be filled"
    )
    assert region.trial == 1


def test_a_prediction_leaves_a_margin_and_the_gradients_free() -> None:
    two = ((at(2), fits(200)), (at(4), fits(300)))
    # 12 samples: 700 MiB, which is 6 % above 660 MiB and 4 % above 673 MiB.
    assert closed(history(*two, usable_bytes=660 * MIB)) == {None: [12, 24]}
    assert closed(history(*two, usable_bytes=673 * MIB)) == {None: [24]}
    # 24 samples at once: 1300 MiB less the gradients.
    spared = history(*two, usable_bytes=700 * MIB, gradient_bytes=600 * MIB)
    assert closed(spared) == {}


def test_a_prediction_of_a_form_that_keeps_less_holds_for_those_that_keep_more() -> None:
    known = history((at(2, 2), fits(200)), (at(4, 2), fits(300)), usable_bytes=500 * MIB)
    assert closed(known) == {None: [12, 24], 3: [12, 24], 2: [12, 24]}


def test_a_floor_predicts_nothing() -> None:
    known = history((at(2), fits(200)), (at(4), fits(200)), usable_bytes=210 * MIB)
    assert known.regions == ()


def test_what_ran_out_bounds_the_line_from_below() -> None:
    out = OutOfMemory(where="device", cause="full", limit_bytes=500 * MIB)
    known = history(
        (at(2), fits(400)), (at(3), out), usable_bytes=500 * MIB, gradient_bytes=800 * MIB
    )
    # 100 MiB a sample at the least: 24 samples need 2600 MiB, less 800 MiB of gradients.
    assert known.closed_by(at(24)) is not None
    assert "trials 0 and 1" in known.regions[-1].reason


def test_no_limit_no_prediction() -> None:
    assert history((at(2), fits(200)), (at(4), fits(300))).regions == ()


def test_a_killed_process_is_tried_once_more_at_the_same_place() -> None:
    known = history((at(8), KILLED))
    assert known.regions == ()
    assert known.is_open(at(8))
    again = history((at(8), KILLED), (at(8), KILLED))
    assert closed(again) == {None: [8, 12, 24]}
    assert not again.is_open(at(8))


def test_a_second_killed_process_at_a_smaller_size_is_evidence() -> None:
    known = history((at(8), KILLED), (at(4), KILLED))
    assert closed(known) == {None: [4, 6, 8, 12, 24]}
    assert not known.is_open(at(4))


def test_a_killed_process_that_works_the_second_time_closes_nothing() -> None:
    known = history((at(8), KILLED), (at(8), fits()))
    assert known.regions == ()
    assert [t.configuration for t in known.measured] == [at(8)]


def test_a_size_that_fails_closes_larger_ones_once_a_smaller_one_works() -> None:
    failed = Failed(cause="Index 8 is out of range.")
    assert history((at(8), failed)).regions == ()
    known = history((at(8), failed), (at(1), fits()))
    assert closed(known) == {None: [12, 24]}
    assert known.regions[0].reason == (
        "micro-batch size 1 works and 8 fails: Index 8 is out of range."
    )
    assert not known.regions[0].by_memory
    assert known.is_open(at(4))


def test_the_same_failure_at_two_sizes_leaves_only_what_works() -> None:
    known = history(
        (at(8), Failed(cause="Index 8 is out of range.")),
        (at(1), fits()),
        (at(4), Failed(cause="Index 4 is out of range.")),
    )
    assert closed(known) == {None: [2, 3, 6, 12, 24]}
    other = history(
        (at(8), Failed(cause="Index 8 is out of range.")),
        (at(1), fits()),
        (at(4), Failed(cause="No pad token.")),
    )
    assert closed(other) == {None: [6, 12, 24]}


def test_a_form_that_fails_twice_where_another_works_is_closed() -> None:
    failed = Failed(cause="The layer does not support it.")
    works = (at(8), fits())
    assert history(works, (at(8, 1), failed)).regions == ()
    known = history(works, (at(8, 1), failed), (at(4, 1), failed))
    assert closed(known) == {1: [1, 2, 3, 6, 12, 24]}
    assert known.regions[0].what == "checkpointing every layer"
    later = history((at(8, 1), failed), (at(4, 1), failed), works)
    assert closed(later) == closed(known)
    nothing_works = history((at(8, 1), failed), (at(4, 1), failed))
    assert nothing_works.regions == ()


@pytest.mark.parametrize("outcome", [TimedOut(limit_s=1, cause="slow"), Stopped(cause="by hand")])
def test_what_took_too_long_or_was_stopped_closes_nothing_and_is_not_repeated(
    outcome: Outcome,
) -> None:
    known = history((at(8), outcome), (at(4), outcome))
    assert known.regions == ()
    assert not known.is_open(at(8))
    assert known.is_open(at(6))


def test_confirmation_can_strike_a_configuration_out_but_not_change_its_rank() -> None:
    known = history((at(8), fits(step_s=1.0)), (at(4), fits(step_s=2.0)))
    confirmed = with_trial(
        known,
        FinishedTrial(number=2, purpose="confirm", configuration=at(4), outcome=fits(step_s=0.1)),
    )
    assert [t.measured.samples_per_s for t in confirmed.measured] == [24.0, 12.0]
    assert confirmed.num_search_trials == 2
    struck = with_trial(
        confirmed, FinishedTrial(number=3, purpose="memory", configuration=at(8), outcome=FULL)
    )
    assert [t.configuration for t in struck.measured] == [at(4)]
    assert not struck.is_open(at(12)), "memory is memory, whoever looks"


def test_a_trial_beyond_the_space_still_tells_of_memory() -> None:
    other = Configuration(micro_batch_size=5, accumulation_steps=2)
    known = history((other, FULL), (at(4), fits()))
    assert closed(known) == {None: [6, 8, 12, 24]}
    assert known.num_search_trials == 2
    assert not known.is_open(other)
    unknown_form = Checkpointing(every_n_layers=5)
    assert history((replace(other, checkpointing=unknown_form), FULL)).regions == ()


def test_a_larger_limit_opens_again_what_ran_out_under_a_smaller_one() -> None:
    under_1_gib = OutOfMemory(where="device", cause="full", limit_bytes=1000 * MIB)
    trials = ((at(8), under_1_gib), (at(4), fits(900)))
    assert closed(history(*trials, usable_bytes=1000 * MIB)) == {None: [12, 24]}
    assert closed(history(*trials, usable_bytes=1100 * MIB)) == {None: [12, 24]}
    grown = history(*trials, usable_bytes=2000 * MIB)
    assert grown.regions == ()
    assert grown.is_open(at(8))
    needs_more = replace(under_1_gib, needed_at_least_bytes=3000 * MIB)
    assert not history((at(8), needs_more), usable_bytes=2000 * MIB).is_open(at(8))


def test_a_smaller_limit_strikes_out_what_was_measured_above_it() -> None:
    trials = ((at(8), fits(900)), (at(4), fits(500)))
    assert len(history(*trials, usable_bytes=1000 * MIB).measured) == 2
    shrunk = history(*trials, usable_bytes=600 * MIB)
    assert [t.configuration for t in shrunk.measured] == [at(4)]
    assert not shrunk.is_open(at(8))
    assert closed(shrunk) == {None: [12, 24]}
    assert shrunk.regions[0].reason == ("trial 0 needed 900 MiB at 8×3, and less may be filled now")


OUTCOMES = st.sampled_from(
    [
        FULL,
        KILLED,
        fits(100),
        fits(400, 2.0),
        Failed(cause="no", remedy="yes", log="trials/1/log"),
        TimedOut(limit_s=1.5, cause="slow"),
        Stopped(cause="by hand"),
    ]
)
TRIALS = st.lists(st.tuples(st.sampled_from(SPACE.candidates), OUTCOMES), max_size=12)


@given(TRIALS)
def test_regions_hold_only_open_candidates_once_and_never_open_again(
    trials: list[tuple[Configuration, Outcome]],
) -> None:
    known = history(usable_bytes=500 * MIB)
    left = set(known.open_candidates)
    for number, (configuration, outcome) in enumerate(trials):
        known = with_trial(
            known,
            FinishedTrial(
                number=number, purpose="search", configuration=configuration, outcome=outcome
            ),
        )
        now_open = set(known.open_candidates)
        assert now_open <= left, "what was closed or tried stays so"
        assert {c for c in SPACE.candidates if known.is_open(c)} == now_open
        left = now_open
    closed_ones = [c for r in known.regions for c in r.configurations]
    assert len(closed_ones) == len(set(closed_ones))
    assert all(r.configurations for r in known.regions)


@given(trials=TRIALS)
def test_a_history_from_the_journal_is_the_history_that_was_lived(
    trials: list[tuple[Configuration, Outcome]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory: Path = tmp_path_factory.mktemp("run")
    lived = history(*trials, usable_bytes=500 * MIB)
    with Journal(directory / "journal.jsonl", directory / "progress.json") as journal:
        for trial in lived.trials:
            journal.append(
                TrialFinished(
                    number=trial.number,
                    purpose=trial.purpose,
                    configuration=trial.configuration.to_json(),  # type: ignore[arg-type]
                    outcome=trial.outcome,
                    wall_s=1.0,
                    overhead_s=0.1,
                )
            )
    view = fold(read(directory / "journal.jsonl"))
    told = with_trials(history(usable_bytes=500 * MIB), finished_trials(view))
    assert told == lived
    forgetful = finished_trials(view, forget_stopped=True)
    assert [t for t in lived.trials if not isinstance(t.outcome, Stopped)] == list(forgetful)


def test_a_process_killed_by_somebody_closes_nothing_and_is_tried_once_more() -> None:
    known = history((at(8), fits(200)), (at(12), ENDED))
    assert known.regions == ()
    assert known.is_open(at(12))
    assert known.is_open(at(24))
    twice = history((at(8), fits(200)), (at(12), ENDED), (at(12), ENDED))
    assert twice.regions == ()
    assert not twice.is_open(at(12))
    assert twice.is_open(at(24))
    # What was measured before stays measured, once.
    assert [t.number for t in history((at(8), fits()), (at(8), ENDED)).measured] == [0]
    assert history((at(8), fits()), (at(8), ENDED), (at(8), ENDED)).measured == ()
