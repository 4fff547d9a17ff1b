"""What is expected of candidates that were not tried."""

from __future__ import annotations

import pytest

from autotune.configuration import Configuration
from autotune.outcome import Outcome, OutOfMemory
from autotune.search.evidence.closing import with_trials
from autotune.search.evidence.finished import FinishedTrial
from autotune.search.evidence.history import History
from autotune.search.evidence.outlook import Outlook, likely_candidates
from tests.testing.landscapes import MIB, make_space, measured

SPACE = make_space(24, kept_fractions=(1.0, 0.75, 0.5, 0.25))


def at(size: int, every_n_layers: int | None = None) -> Configuration:
    return next(
        c
        for c in SPACE.candidates
        if c.micro_batch_size == size and c.checkpointing.every_n_layers == every_n_layers
    )


def known(*trials: tuple[Configuration, Outcome], usable_mib: int | None = None) -> History:
    return with_trials(
        History(
            space=SPACE,
            usable_bytes=None if usable_mib is None else usable_mib * MIB,
            gradient_bytes=40 * MIB,
        ),
        (
            FinishedTrial(number=n, purpose="search", configuration=c, outcome=o)
            for n, (c, o) in enumerate(trials)
        ),
    )


def fits(s_per_sample: float, num_mib: int = 100) -> Outcome:
    return measured([24 * s_per_sample] * 4, 24, num_mib * MIB)


FULL = OutOfMemory(where="device", cause="full")


def test_speed_follows_overhead_beyond_the_measured_sizes() -> None:
    # A sample takes 1 + 4 / size.
    outlook = Outlook(known((at(2), fits(3.0)), (at(4), fits(2.0))))
    assert outlook.leader.configuration == at(4)
    assert outlook.speed(at(4)) == 1.0
    assert outlook.speed(at(2)) == pytest.approx(2 / 3)
    assert outlook.speed(at(8)) == pytest.approx(2.0 / 1.5)
    assert outlook.speed(at(24)) == pytest.approx(2.0 / (1 + 4 / 24))
    assert outlook.speed(at(24), farthest_size=8) == pytest.approx(2.0 / 1.5)
    assert outlook.speed(at(1)) == pytest.approx(2.0 / 5.0)


def test_a_form_costs_at_least_what_it_recomputes() -> None:
    outlook = Outlook(known((at(2), fits(3.0)), (at(4), fits(2.0))))
    assert outlook.speed(at(4, 1)) == pytest.approx(1 / 1.2)
    assert outlook.speed(at(4, 2)) == pytest.approx(1 / 1.1)
    assert outlook.speed(at(8, 2)) == pytest.approx(2.0 / 1.5 / 1.1)


def test_a_form_that_was_measured_costs_what_was_read_and_those_that_keep_less_no_less() -> None:
    outlook = Outlook(known((at(2), fits(3.0)), (at(4), fits(2.0)), (at(4, 3), fits(2.8))))
    assert outlook.speed(at(8, 3)) == pytest.approx(2.0 / 1.5 / 1.4)
    assert outlook.speed(at(8, 1)) == pytest.approx(2.0 / 1.5 / 1.4)


def test_past_the_best_no_gain_is_expected() -> None:
    outlook = Outlook(known((at(4), fits(2.0)), (at(8), fits(2.5))))
    assert outlook.speed(at(24)) == pytest.approx(2.0 / 2.5)
    assert 0.8 < outlook.speed(at(6)) < 1.0


def test_memory_is_expected_by_what_each_form_keeps() -> None:
    # 50 MiB a sample on 100 MiB, of which 40 are gradients.
    outlook = Outlook(known((at(2), fits(3, 200)), (at(4), fits(2, 300)), usable_mib=500))
    assert outlook.may_fit(at(8)), "500 MiB"
    assert not outlook.may_fit(at(12)), "700 MiB"
    assert outlook.may_fit(at(12, 2)), "400 MiB"
    assert not outlook.may_fit(at(24, 2)), "660 MiB in one micro-batch"
    assert outlook.may_fit(at(24, 1)), "360 MiB in one micro-batch"
    assert outlook.is_sure_to_fit(at(12, 1)), "as much as 3 samples without checkpointing"
    assert not outlook.is_sure_to_fit(at(6))


def test_one_reading_of_memory_says_only_that_what_ran_out_is_too_much() -> None:
    outlook = Outlook(known((at(2), fits(3, 200)), (at(8), FULL), usable_mib=500))
    assert not outlook.knows_memory
    assert outlook.may_fit(at(6))
    assert outlook.may_fit(at(12, 2))
    assert not outlook.may_fit(at(24, 2))


def test_samplers_are_offered_what_may_fit_and_all_the_rest_when_that_is_used_up() -> None:
    history = known((at(2), fits(3, 200)), (at(4), fits(2, 300)), usable_mib=500)
    likely = likely_candidates(history)
    assert at(8) in likely
    assert at(12) not in likely
    assert set(likely) < set(history.open_candidates)
    nothing = known((at(8), FULL))
    assert likely_candidates(nothing) == nothing.open_candidates


def test_without_a_measured_trial_there_is_no_outlook() -> None:
    with pytest.raises(ValueError, match="nothing was measured yet"):
        Outlook(known((at(8), FULL)))


def test_a_leap_beyond_the_size_itself_promises_no_less_than_the_size() -> None:
    # 9 s a sample at 2, 1 s at 4: a straight line would have 12 cost less than nothing.
    outlook = Outlook(known((at(2), fits(9.0)), (at(4), fits(1.0))))
    assert outlook.speed(at(8)) == pytest.approx(2.0)
    assert outlook.speed(at(24)) == pytest.approx(6.0)
    # At 6 it would have cost nothing at all: 3 s at 2, 1.2 s at 3 give a = -2.4 and b = 10.8.
    outlook = Outlook(known((at(2), fits(3.0)), (at(3), fits(1.2))))
    assert outlook.speed(at(6)) == pytest.approx(2.0)
