"""Several ranks and one process alone, searched one after the other in one history."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.configuration import Configuration
from autotune.cost.learning import SampleEfficiency
from autotune.outcome import Exchange, Measured, Outcome, OutOfMemory
from autotune.search.evidence.closing import with_trial
from autotune.search.evidence.finished import FinishedTrial
from autotune.search.evidence.history import History
from autotune.search.evidence.outlook import likely_candidates
from autotune.search.order import Next, Over, next_candidate
from autotune.space import plan
from tests.testing.landscapes import MIB
from tests.testing.landscapes import measured as timed

FULL = OutOfMemory(where="host", cause="full")
EFFICIENCY = SampleEfficiency(value=0.8, interval=(0.7, 0.9), basis="assumed")


def measured(samples_per_s: float, total_bytes: int) -> Measured:
    return timed([32 / samples_per_s] * 3, 32, total_bytes)


def history(*, with_one_process: bool = True, local_sgd: str = "off") -> History:
    baseline = Configuration(micro_batch_size=4, accumulation_steps=4, world_size=2)
    space = plan(
        baseline=baseline,
        num_rows=1000,
        with_one_process=with_one_process,
        local_sgd=local_sgd,
    )
    return History(space=space, usable_bytes=1000 * MIB)


def told(history: History, configuration: Configuration, outcome: Outcome) -> History:
    trial = FinishedTrial(
        number=len(history.trials),
        purpose="search" if history.trials else "baseline",
        configuration=configuration,
        outcome=outcome,
    )
    return with_trial(history, trial)


def searched(found: History, rates: dict[int, float]) -> tuple[History, Over, list[Next]]:
    """Runs the search on ranks that each make a constant rate, by their number."""
    steps = []
    while isinstance(step := next_candidate(found), Next):
        steps.append(step)
        rate = rates[step.configuration.world_size]
        found = told(found, step.configuration, measured(rate, 500 * MIB))
    return found, step, steps


def test_all_ranks_are_searched_first_and_then_one_process() -> None:
    found, _, steps = searched(history(), {2: 100.0, 1: 90.0})
    sizes = [step.configuration.world_size for step in steps]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 2
    assert sizes[-1] == 1
    first_alone = next(step for step in steps if step.configuration.world_size == 1)
    assert first_alone.why == "does one process alone do as well as all ranks?"
    # It starts where the ranks do best, at the same micro-batch size.
    best = found.arm(2).standing.best()
    assert best is not None
    assert first_alone.configuration.micro_batch_size == best.configuration.micro_batch_size


def test_one_process_that_is_far_behind_gets_a_single_trial() -> None:
    _, over, steps = searched(history(), {2: 100.0, 1: 40.0})
    assert [s.configuration.world_size for s in steps].count(1) == 1
    assert isinstance(over, Over)
    near, _, more = searched(history(), {2: 100.0, 1: 95.0})
    assert [s.configuration.world_size for s in more].count(1) > 1
    assert near.standing.best() is not None


def test_memory_that_ran_out_on_one_process_closes_nothing_for_the_ranks() -> None:
    found = history()
    alone = Configuration(micro_batch_size=8, accumulation_steps=4)
    found = told(found, alone, OutOfMemory(where="host", cause="No more.", limit_bytes=1000 * MIB))
    closed = {c for region in found.regions for c in region.configurations}
    assert closed
    assert {c.world_size for c in closed} == {1}
    assert {c.micro_batch_size for c in closed} == {16, 32}


def test_a_trial_of_local_sgd_weighs_what_its_samples_teach() -> None:
    found = replace(history(local_sgd="auto"), efficiencies={16: EFFICIENCY})
    ddp = Configuration(micro_batch_size=4, accumulation_steps=4, world_size=2)
    local = replace(ddp, local_sgd_steps=16)
    found = told(found, ddp, measured(100.0, 500 * MIB))
    found = told(found, local, measured(120.0, 500 * MIB))
    trials = {t.configuration: t for t in found.measured}
    ratio = found.standing.ratio(trials[local], trials[ddp])
    assert ratio.value == pytest.approx(0.96, rel=1e-3)
    assert found.standing.fastest() == trials[ddp]
    assert found.leaders[0] == trials[ddp]
    insisted = replace(found, required_local_sgd_steps=16)
    assert insisted.leaders == (trials[local],)
    # It is no candidate of the search, and closes nothing there.
    assert found.arm(2).trials == (found.trials[0],)


def test_an_exchange_survives_in_a_trial() -> None:
    exchange = Exchange(
        compute_s=1.0,
        ddp_step_s=1.5,
        exposed_s=0.5,
        averaging_s=0.2,
        averaging_bytes=8,
        num_collectives_per_step=0.0,
    )
    outcome = replace(measured(10.0, MIB), exchange=exchange)
    found = told(history(), history().space.baseline, outcome)
    assert isinstance(found.trials[0].outcome, Measured)
    assert found.measured[0].measured.exchange == exchange


def test_a_trial_of_another_global_batch_is_no_part_of_the_search() -> None:
    found, over, steps = searched(history(), {2: 100.0, 1: 95.0})
    best = steps[0].configuration
    larger = replace(best, accumulation_steps=4 * best.accumulation_steps)
    again = told(found, larger, measured(200.0, 500 * MIB))
    assert again.arm(2).trials == found.arm(2).trials
    # A run that is taken up after it goes on as if it were not there, though it is the fastest.
    assert next_candidate(again) == over
    begun = told(told(history(), best, measured(100.0, 500 * MIB)), larger, found.trials[0].outcome)
    step = next_candidate(begun)
    assert isinstance(step, Next)
    assert step == next_candidate(told(history(), best, measured(100.0, 500 * MIB)))
    # Where it does not fit, what needs as much does not fit either.
    full = told(told(history(), best, measured(100.0, 500 * MIB)), larger, FULL)
    assert {(c.world_size, c.micro_batch_size) for r in full.regions for c in r.configurations} == {
        (2, 8),
        (2, 16),
    }


def test_a_sampler_is_offered_what_may_fit_of_every_number_of_ranks() -> None:
    # The same micro-batch size on two ranks and on one: what the one needs says nothing of the
    # other.
    found = history()
    for world_size, mib in ((2, 300), (1, 100)):
        for size in (2, 4):
            configuration = next(
                c
                for c in found.space.candidates
                if (c.world_size, c.micro_batch_size) == (world_size, size)
            )
            found = told(found, configuration, measured(50.0, size * mib * MIB // 2))
    likely = likely_candidates(found)
    assert {c.micro_batch_size for c in likely if c.world_size == 2} == {1}
    assert {c.micro_batch_size for c in likely if c.world_size == 1} == {1, 8, 16}
    assert set(likely) <= set(found.open_candidates)
