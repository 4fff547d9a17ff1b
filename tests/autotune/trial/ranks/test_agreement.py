"""One outcome of several ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.outcome import (
    Distances,
    Exchange,
    Failed,
    Interlude,
    OutOfMemory,
    Speed,
    Stopped,
    TimedOut,
)
from autotune.trial.protocol import CannotLoad, ParityFound, SpeedMeasured
from autotune.trial.ranks.agreement import RankReply, agreed
from tests.autotune.trial.fake_worker import FACTS, measured, ready


def speed(*times_s: float, losses: tuple[float | None, ...] | None = None) -> SpeedMeasured:
    num = len(times_s)
    return SpeedMeasured(
        speed=Speed(
            step_times_s=times_s,
            step_samples=(4,) * num,
            step_tokens=(40,) * num,
            losses=losses or (1.0,) * num,
            num_warmup_steps=2,
        ),
        phases=None,
        steps_s=sum(times_s) + 1,
        high_water_bytes=100,
        exchange=Exchange(
            compute_s=0.1 * sum(times_s),
            ddp_step_s=0.5,
            exposed_s=0.5 - 0.1 * sum(times_s),
            averaging_s=0.01 * num,
            averaging_bytes=400,
            num_collectives_per_step=1.0,
            collectives=("all_gather",),
        ),
    )


def test_the_rank_that_took_longest_gives_the_times_and_all_give_their_samples() -> None:
    joined = agreed([speed(1.0, 1.2, losses=(2.0, None)), speed(1.5, 1.0, losses=(4.0, 1.0))])
    assert isinstance(joined, SpeedMeasured)
    assert joined.speed is not None
    assert joined.speed.step_times_s == (1.5, 1.0)
    assert joined.speed.step_samples == (8, 8)
    assert joined.speed.step_tokens == (80, 80)
    assert joined.speed.losses == (3.0, None)
    assert joined.speed.samples_per_s == pytest.approx(16 / 2.5)
    assert joined.steps_s == 3.5


def test_distances_are_the_mean_of_what_the_ranks_saw() -> None:
    near = Distances(apart_squared=(1.0, 2.0), moved_squared=(9.0, 8.0))
    far = replace(near, apart_squared=(3.0, 6.0))
    seen = [replace(speed(1.0), distances=found) for found in (near, far)]
    joined = agreed(seen)
    assert isinstance(joined, SpeedMeasured)
    assert joined.distances == replace(near, apart_squared=(2.0, 4.0))
    joined = agreed([seen[0], speed(1.0)])
    assert isinstance(joined, SpeedMeasured)
    assert joined.distances is None


def test_of_the_exchange_the_slowest_rank_decides() -> None:
    joined = agreed([speed(1.0, 1.0), speed(2.0, 1.0)])
    assert isinstance(joined, SpeedMeasured)
    assert joined.exchange is not None
    assert joined.exchange.compute_s == pytest.approx(0.3)
    assert joined.exchange.exposed_s == pytest.approx(0.2)
    assert joined.exchange.collectives == ("all_gather",)


def test_steps_that_do_not_match_are_no_measurement() -> None:
    with pytest.raises(ValueError, match="different numbers of steps"):
        agreed([speed(1.0), speed(1.0, 1.0)])


def test_the_rank_that_needs_most_memory_decides() -> None:
    joined = agreed([measured(10), measured(30), measured(20)])
    assert joined.kind == "memory_measured"
    assert joined.memory.total_bytes == 30


def test_what_one_rank_could_not_do_between_its_steps_was_not_done() -> None:
    fine = Interlude(evaluation_batch_size=8, evaluation_bytes=70, is_saved=True)
    more = replace(fine, evaluation_bytes=90)
    joined = agreed([replace(measured(10), interlude=fine), replace(measured(9), interlude=more)])
    assert joined.kind == "memory_measured"
    assert joined.interlude == more
    broken = Interlude(
        evaluation_batch_size=8, evaluation_bytes=None, is_saved=False, faults=("no disk",)
    )
    joined = agreed([replace(measured(1), interlude=i) for i in (fine, broken, broken)])
    assert joined.kind == "memory_measured"
    assert joined.interlude == broken
    assert agreed([measured(1), measured(2)]).interlude is None  # type: ignore[union-attr]


OUT = OutOfMemory(where="host", cause="No more.", limit_bytes=5)
KILLED = OutOfMemory(where="host", cause="Killed.", is_certain=False)
ENDED = Failed(cause="The process was killed from outside.", is_killed=True)
GONE = Failed(cause="Another rank is gone or does not answer (Read error).")
ECHO = Failed(cause="RuntimeError: Connection closed by peer [127.0.0.1]:4711")
FAULT = Failed(cause="ValueError: no such label")
LATE = TimedOut(limit_s=3.0, cause="No answer within 3 s.")
OFF = Stopped(cause="Another rank could not go on.")


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ([measured(), OUT], replace(OUT, cause="On rank 1: No more.")),
        ([ECHO, OUT], replace(OUT, cause="On rank 1: No more.")),
        ([KILLED, OUT], replace(OUT, cause="On rank 1: No more.")),
        ([ECHO, KILLED], replace(KILLED, cause="On rank 1: Killed.")),
        ([ECHO, FAULT], replace(FAULT, cause="On rank 1: ValueError: no such label")),
        ([FAULT, ECHO], replace(FAULT, cause="On rank 0: ValueError: no such label")),
        ([GONE, FAULT], replace(FAULT, cause="On rank 1: ValueError: no such label")),
        ([FAULT, ENDED], replace(ENDED, cause=f"On rank 1: {ENDED.cause}")),
        ([OFF, LATE], replace(LATE, cause="On rank 1: No answer within 3 s.")),
        ([LATE, OFF, OUT], replace(OUT, cause="On rank 2: No more.")),
        ([OFF, measured()], OFF),
    ],
)
def test_what_tells_most_is_the_outcome_of_all(
    replies: list[RankReply], expected: RankReply
) -> None:
    assert agreed(replies) == expected


def test_ranks_are_ready_when_the_last_is() -> None:
    slow = replace(ready(), load_s=7.0)
    joined = agreed([ready(), slow])
    assert joined == replace(ready(), load_s=7.0)


def test_ranks_that_loaded_different_jobs_cannot_train_together() -> None:
    shorter = replace(ready(), facts=replace(FACTS, num_rows=7))
    joined = agreed([ready(), shorter])
    assert isinstance(joined, CannotLoad)
    assert "rows of training data differ, 1 against 7" in joined.cause
    older = replace(ready(), facts=replace(FACTS, versions=(("torch", "2.6"),)))
    joined = agreed([ready(), older])
    assert isinstance(joined, CannotLoad)
    assert "library versions differ" in joined.cause


def test_answers_to_different_commands_are_refused() -> None:
    parity = ParityFound(
        losses=(1.0, 1.0),
        gradient_norms=(1.0, 1.0),
        repaired_losses=None,
        repaired_gradient_norms=None,
    )
    assert agreed([parity, parity]) == parity
    with pytest.raises(ValueError, match="answered differently"):
        agreed([parity, measured()])
