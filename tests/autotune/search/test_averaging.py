"""Whether local SGD is tried, and at which number of steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.configuration import Configuration
from autotune.cost.learning import assumed_local_sgd
from autotune.events import LocalSGDPredicted
from autotune.outcome import Exchange, Measured
from autotune.search.averaging import efficiencies, try_local_sgd
from autotune.search.evidence.closing import with_trial
from autotune.search.evidence.finished import FinishedTrial
from autotune.search.evidence.history import History
from autotune.space import plan
from tests.testing.landscapes import MIB, measured
from tests.testing.scripted import Scripted

MODEL = assumed_local_sgd("adam", clips=True)
TOGETHER = Configuration(micro_batch_size=8, accumulation_steps=1, world_size=2)


def timed(samples_per_s: float) -> Measured:
    return measured([16 / samples_per_s] * 4, 16, 500 * MIB)


def exchanging(ddp_s: float, compute_s: float, averaging_s: float) -> Measured:
    exchange = Exchange(
        compute_s=compute_s,
        ddp_step_s=ddp_s,
        exposed_s=ddp_s - compute_s,
        averaging_s=averaging_s,
        averaging_bytes=3_340_000,
        num_collectives_per_step=1.0,
        collectives=("all_gather",),
    )
    return replace(timed(16 / ddp_s), exchange=exchange)


def engine(
    *trials: tuple[Configuration, Measured],
    local_sgd: str = "auto",
    refused: str | None = None,
) -> Scripted:
    space = plan(
        baseline=TOGETHER,
        num_rows=None,
        with_one_process=True,
        local_sgd=local_sgd,
        no_local_sgd=refused,
    )
    history = History(space=space, efficiencies=efficiencies(space.local_sgd_steps, MODEL))
    for number, (configuration, outcome) in enumerate(trials):
        history = with_trial(
            history,
            FinishedTrial(
                number=number, purpose="search", configuration=configuration, outcome=outcome
            ),
        )
    return Scripted(history, lambda configuration: timed(200.0))


SLOW_LINK = exchanging(0.377, 0.060, 0.298)
"""What a small GPT-2 took over a link of 100 Mbit/s with 10 ms round trips."""
FAST_LINK = exchanging(0.066, 0.060, 0.007)


def test_on_a_slow_link_the_best_number_of_steps_is_tried() -> None:
    run = engine((TOGETHER, SLOW_LINK))
    try_local_sgd(run.as_engine, MODEL, wish="auto", total_steps=None)
    ((configuration, why),) = run.asked
    # sqrt(r (1 - kappa) / kappa) is 35 at r = 5; of the powers of two, 32 is next to it.
    assert configuration == replace(TOGETHER, local_sgd_steps=32)
    assert why == "local SGD every 32 steps promises most"
    (event,) = run.events
    assert isinstance(event, LocalSGDPredicted)
    assert event.local_sgd_steps == 32
    assert [row["local_sgd_steps"] for row in event.rows] == [1, 2, 4, 8, 16, 32, 64]
    assert [row["is_measured"] for row in event.rows] == [True, *[False] * 6]
    assert event.rows[4]["step_s"] == pytest.approx(0.060 + 0.298 / 16)
    # It is tried once.
    try_local_sgd(run.as_engine, MODEL, wish="auto", total_steps=None)
    assert len(run.asked) == 1
    trial = run.history.leaders[0]
    assert trial.configuration.local_sgd_steps == 32


def test_where_the_exchange_hides_nothing_is_tried_and_that_is_said() -> None:
    run = engine((TOGETHER, FAST_LINK))
    try_local_sgd(run.as_engine, MODEL, wish="auto", total_steps=None)
    assert run.asked == []
    (event,) = run.events
    assert isinstance(event, LocalSGDPredicted)
    assert event.local_sgd_steps == 1
    assert event.sentence.startswith("DDP stays")


def test_a_number_that_the_user_insists_on_is_tried_whatever_is_expected() -> None:
    run = engine((TOGETHER, FAST_LINK), local_sgd="12")
    try_local_sgd(run.as_engine, MODEL, wish="12", total_steps=None)
    assert run.asked == [
        (replace(TOGETHER, local_sgd_steps=12), "local SGD every 12 steps, as you asked")
    ]
    (event,) = run.events
    assert isinstance(event, LocalSGDPredicted)
    assert event.sentence == (
        "Unasked, DDP would stay: its exchange adds 10% to a step, which leaves nothing to save."
    )


def test_it_goes_with_the_configuration_that_computes_fastest() -> None:
    small = Configuration(micro_batch_size=2, accumulation_steps=4, world_size=2)
    run = engine((TOGETHER, SLOW_LINK), (small, exchanging(0.370, 0.090, 0.298)))
    try_local_sgd(run.as_engine, MODEL, wish="auto", total_steps=None)
    assert run.asked[0][0].micro_batch_size == 8


@pytest.mark.parametrize(
    "run",
    [
        engine((TOGETHER, timed(40.0))),
        engine((TOGETHER, SLOW_LINK), refused="fp16"),
        engine((TOGETHER, SLOW_LINK), local_sgd="off"),
        engine(),
    ],
    ids=["no exchange measured", "refused", "switched off", "nothing measured"],
)
def test_otherwise_nothing_happens(run: Scripted) -> None:
    try_local_sgd(run.as_engine, MODEL, wish="auto", total_steps=None)
    assert (run.asked, run.events) == ([], [])


def test_rounds_are_no_longer_than_the_training() -> None:
    run = engine((TOGETHER, SLOW_LINK))
    try_local_sgd(run.as_engine, MODEL, wish="auto", total_steps=10)
    assert run.asked[0][0].local_sgd_steps == 8
