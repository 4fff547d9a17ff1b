"""What engines make of each other's outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.outcome import Failed, Outcome, OutOfMemory, Stopped, TimedOut
from autotune.search.evidence.closing import with_trial
from autotune.search.evidence.finished import FinishedTrial
from tests.testing.studies import LANDSCAPE, empty, opened, run_trials, tell

FIRST, SECOND = LANDSCAPE.space.candidates[:2]
READING = LANDSCAPE.outcome(FIRST)


def test_whole_outcomes_arrive_with_where_they_come_from(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    with opened(tmp_path / "unused.db", storage=url, host="node2") as other:
        history = run_trials(other, empty(), 3)
        assert other.arrivals(empty()) == (), "its own are no news"
    with opened(tmp_path / "unused.db", storage=url) as study:
        found = study.arrivals(empty())
        assert {a.configuration: a.outcome for a in found} == {
            t.configuration: t.outcome for t in history.trials
        }
        assert [(a.origin.host, a.origin.run, a.origin.number) for a in found] == [
            ("node2", "run-1", 0),
            ("node2", "run-1", 1),
            ("node2", "run-1", 2),
        ]
        known = empty()
        for number, a in enumerate(found):
            known = with_trial(
                known,
                FinishedTrial(
                    number=number,
                    purpose="search",
                    configuration=a.configuration,
                    outcome=a.outcome,
                    origin=a.origin,
                ),
            )
        assert study.arrivals(known) == ()
        assert (known.num_search_trials, known.num_own_trials) == (3, 0)
        # What came from others is theirs in the storage, too.
        run_trials(study, known, 1)
        assert len(other_entries := study._own_numbers()) == 1
        assert other_entries == {3}
    assert not (tmp_path / "unused.db").exists()


@pytest.mark.parametrize(
    ("outcome", "of_a_sound_machine", "of_a_broken_one"),
    [
        (READING, True, True),
        (OutOfMemory(where="device", cause="full"), True, True),
        (OutOfMemory(where="host", cause="killed", is_certain=False), True, False),
        (Failed(cause="no"), True, False),
        (Failed(cause="killed", is_killed=True), False, False),
        (TimedOut(limit_s=1.0, cause="slow"), True, False),
        (Stopped(cause="by hand"), False, False),
    ],
)
def test_failures_are_believed_of_machines_that_have_measured_something(
    outcome: Outcome, of_a_sound_machine: bool, of_a_broken_one: bool, tmp_path: Path
) -> None:
    for is_sound, is_believed in ((True, of_a_sound_machine), (False, of_a_broken_one)):
        url = f"sqlite:///{tmp_path / f'shared-{is_sound}.db'}"
        with opened(tmp_path / "unused.db", storage=url, host="node2") as other:
            history = empty()
            if is_sound:
                other.ask(history, FIRST)
                history = tell(other, history, READING)
            other.ask(history, SECOND)
            tell(other, history, outcome)
        with opened(tmp_path / "unused.db", storage=url) as study:
            arrived = {a.configuration for a in study.arrivals(empty())}
            assert (SECOND in arrived) == is_believed
            assert (study.ask(empty(), SECOND) == SECOND) != is_believed, "else it is settled"


def test_one_uncertain_end_may_be_tried_once_more_by_anybody(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    killed = OutOfMemory(where="host", cause="killed", is_certain=False)
    with opened(tmp_path / "unused.db", storage=url, host="node2") as other:
        history = run_trials(other, empty(), 1)
        other.ask(history, SECOND)
        tell(other, history, killed)
    with opened(tmp_path / "unused.db", storage=url) as study:
        arrival = next(a for a in study.arrivals(empty()) if a.configuration == SECOND)
        known = with_trial(
            empty(),
            FinishedTrial(
                number=0,
                purpose="search",
                configuration=SECOND,
                outcome=arrival.outcome,
                origin=arrival.origin,
            ),
        )
        assert known.is_open(SECOND)
        assert study.ask(known, SECOND) == SECOND
