"""Claims: one engine at a time, however they meet, and nobody waits for the dead."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from autotune.search.studies.claims import HOLDER, WITHDRAWN
from tests.testing.studies import (
    HASTY,
    LANDSCAPE,
    empty,
    opened,
    run_trials,
    states,
    stored,
    tell,
)

ROOT = Path(__file__).parents[4]
FIRST, SECOND = LANDSCAPE.space.candidates[:2]


def shared(directory: Path) -> str:
    return f"sqlite:///{directory / 'shared.db'}"


def test_the_lower_number_has_the_candidate_and_the_other_withdraws(tmp_path: Path) -> None:
    url = shared(tmp_path)
    with (
        opened(tmp_path / "unused.db", storage=url, host="node1") as one,
        opened(tmp_path / "unused.db", storage=url, host="node2") as two,
    ):
        assert one.ask(empty(), FIRST) == FIRST
        assert two.held() == {FIRST: "node1"}
        assert one.held() == {}, "its own candidate is none of the others'"
        assert two.ask(empty(), FIRST) is None
        assert two.ask(empty(), SECOND) == SECOND
        assert states(one) == ["RUNNING", "FAIL", "RUNNING"]
        assert stored(one)[1].user_attrs[WITHDRAWN] == "trial 0 is at it"
        history = tell(one, empty(), LANDSCAPE.outcome(FIRST))
        # It ended between two's look at the study and its claim.
        assert two.arrivals(empty())[0].configuration == FIRST
        tell(two, empty(), LANDSCAPE.outcome(SECOND))
        assert two.ask(empty(), FIRST) is None
        assert stored(one)[3].user_attrs[WITHDRAWN] == "it is known by now"
        assert one.ask(history, SECOND) is None


def test_runs_of_one_name_on_several_machines_are_told_apart(tmp_path: Path) -> None:
    url = shared(tmp_path)
    with opened(tmp_path / "unused.db", storage=url, run="job", host="node1") as one:
        run_trials(one, empty(), 2)
    with opened(tmp_path / "unused.db", storage=url, run="job", host="node2") as two:
        assert len(two.arrivals(empty())) == 2


def test_an_engine_on_this_machine_that_was_killed_is_given_up_at_once(tmp_path: Path) -> None:
    url = shared(tmp_path)
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.testing.studies import *\n"
        "with opened(Path('unused'), run='other', storage=sys.argv[1]) as study:\n"
        "    study.ask(empty(), LANDSCAPE.space.candidates[0])\n"
        "    print('asked', flush=True); sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, url],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with opened(tmp_path / "unused.db", storage=url) as study:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"asked\n"
            assert study.ask(empty(), FIRST) is None
            assert [*study.held()] == [FIRST]
        finally:
            other.kill()
            other.communicate()
        assert study.held() == {}
        assert study.ask(empty(), FIRST) == FIRST


def test_a_long_trial_elsewhere_keeps_its_claim_and_a_silent_engine_loses_it(
    tmp_path: Path,
) -> None:
    url = shared(tmp_path)
    with (
        opened(tmp_path / "unused.db", storage=url, host="node1") as one,
        opened(tmp_path / "unused.db", storage=url, host="node2") as two,
    ):
        one.ask(empty(), FIRST)
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < 3 * HASTY.grace_s:
            assert two.held() == {FIRST: "node1"}
            time.sleep(0.05)
        heartbeat = one._claims._heartbeat
        assert heartbeat is not None
        heartbeat.stop()
        limit_s = time.monotonic() + 20 * HASTY.grace_s
        while two.held():
            assert time.monotonic() < limit_s
            time.sleep(0.05)
        assert two.ask(empty(), FIRST) == FIRST
        # The other one lived after all: its outcome is not lost.
        tell(one, empty(), LANDSCAPE.outcome(FIRST))
        given_up, again, told = stored(two)
        assert (given_up.state.name, again.state.name, told.state.name) == (
            "FAIL",
            "RUNNING",
            "COMPLETE",
        )
        assert two.arrivals(empty())[0].origin.host == "node1"


def test_the_next_engine_of_a_run_gives_up_what_the_last_one_left(tmp_path: Path) -> None:
    url = shared(tmp_path)
    with (
        opened(tmp_path / "unused.db", storage=url, run="job") as dead,
        opened(tmp_path / "unused.db", storage=url, run="other", host="node2") as other,
    ):
        dead.ask(empty(), FIRST)
        with opened(tmp_path / "unused.db", storage=url, run="job") as study:
            assert study.ask(empty(), FIRST) == FIRST
            assert states(study) == ["FAIL", "RUNNING"]
            assert [*other.held()] == [FIRST]


def test_a_running_trial_of_another_program_is_left_alone(tmp_path: Path) -> None:
    url = shared(tmp_path)
    with opened(tmp_path / "unused.db", storage=url) as study:
        study._home.study.ask()
        assert study.ask(empty(), FIRST) == FIRST
        assert states(study) == ["RUNNING", "RUNNING"]
        assert HOLDER not in stored(study)[0].user_attrs
