"""The sentences of an answer, held against the trials that they speak of."""

from __future__ import annotations

from autotune.advice.document import trials_json
from autotune.advice.nothing import nothing_fits
from autotune.advice.reasons import shared_reasons
from autotune.events import Origin, TrialReceived
from autotune.outcome import PROCESS_ALONE, Failed, OutOfMemory
from autotune.search.evidence.closing import with_trials
from autotune.search.evidence.finished import FinishedTrial
from autotune.search.evidence.history import History
from autotune.view import fold
from tests.testing import runs
from tests.testing.landscapes import make_space

MIB = 2**20
SPACE = make_space(24)


def told(*outcomes: OutOfMemory | Failed, limit_mib: int = 300) -> tuple[str, str]:
    history = with_trials(
        History(space=SPACE, usable_bytes=limit_mib * MIB),
        (
            FinishedTrial(
                number=number,
                purpose="search",
                configuration=SPACE.candidates[number],
                outcome=outcome,
            )
            for number, outcome in enumerate(outcomes)
        ),
    )
    return nothing_fits(history, limit_mib * MIB)


def test_a_limit_below_the_bare_process_is_told_as_such() -> None:
    cause, remedy = told(
        OutOfMemory(
            where="host",
            cause=f"{PROCESS_ALONE} 476 MiB after its imports.",
            needed_at_least_bytes=476 * MIB,
        )
    )
    assert "1 ran out of memory" in cause
    assert remedy == (
        "No model is small enough: libraries alone take 476 MiB here. Raise --memory-limit."
    )


def test_the_nearest_miss_is_told() -> None:
    _, remedy = told(
        OutOfMemory(where="host", cause="the limit", needed_at_least_bytes=700 * MIB),
        OutOfMemory(where="host", cause="the limit", needed_at_least_bytes=500 * MIB),
    )
    assert "needs more than 500 MiB where 300 MiB are allowed" in remedy
    assert str(SPACE.candidates[1]) in remedy


def test_failures_are_told_with_their_causes() -> None:
    cause, remedy = told(Failed(cause="The loss is a dict."))
    assert "one failed: The loss is a dict." in cause
    assert "Mend what the trials report" in remedy


def test_failures_alike_are_told_once() -> None:
    cause, _ = told(Failed(cause="No row 17."), Failed(cause="No row 17."), Failed(cause="Other."))
    assert "works: 2 failed: No row 17; one failed: Other." in cause


def test_trials_of_other_engines_are_told_with_their_host() -> None:
    received = TrialReceived(
        number=7,
        purpose="search",
        configuration=runs.BEST.to_json(),  # type: ignore[arg-type]
        outcome=runs.measured(41.0),
        origin=Origin(host="node2", run="one", run_id="r", number=3),
    )
    alone = fold(runs.records(runs.searching("one")))
    shared = fold(runs.records([received]), alone)
    assert [t.get("host") for t in trials_json(shared) if isinstance(t, dict)] == [
        None,
        None,
        None,
        "node2",
    ]
    assert list(shared_reasons(alone)) == []
    (reason,) = shared_reasons(shared)
    assert reason.startswith("1 trial(s) were run on node2, ")
