"""The default order on made-up landscapes: it finds the best in a quarter of the grid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.configuration import Checkpointing, Configuration
from autotune.outcome import Failed, Measured, Outcome, OutOfMemory, Stopped, TimedOut
from autotune.search.evidence.closing import with_trial, with_trials
from autotune.search.evidence.finished import FinishedTrial
from autotune.search.evidence.history import History
from autotune.search.order import Next, Over, next_candidate
from autotune.space import plan
from tests.testing.landscapes import (
    CPU_LONG,
    GPU_PAYS,
    GPU_SMALL,
    JOBS,
    MIB,
    Job,
    Landscape,
    Noise,
    Replay,
    load,
    make_landscape,
    make_space,
    measured,
    replay,
)
from tests.testing.recordings import recorded

SEEDS = range(6)
QUIET = Noise(between_trials=0.0, between_steps=0.0)
USUAL = Noise(between_trials=0.01, between_steps=0.02)
LOUD = Noise(between_trials=0.02, between_steps=0.03)
HELD_UP = Noise(between_trials=0.005, between_steps=0.03, hiccups=0.1)


@dataclass
class Score:
    """How a strategy did on one landscape after another."""

    regrets: list[float]
    num_trials: list[int]

    @property
    def success(self) -> float:
        return sum(regret <= 0.03 for regret in self.regrets) / len(self.regrets)


def run(landscape: Landscape) -> Replay:
    return replay(landscape, next_candidate)


def score(job: Job, noise: Noise, *, fraction_out: float, global_batch_size: int) -> Score:
    found = Score([], [])
    for seed in SEEDS:
        landscape = make_landscape(
            job,
            global_batch_size=global_batch_size,
            fraction_out=fraction_out,
            noise=noise,
            seed=seed,
        )
        run_ = run(landscape)
        found.regrets.append(landscape.regret(run_.chosen.configuration))
        found.num_trials.append(len(run_.history.trials))
    return found


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
@pytest.mark.parametrize(
    ("noise", "least_success"),
    [(QUIET, 1.0), (USUAL, 0.9), (LOUD, 0.65), (HELD_UP, 0.65)],
    ids=["quiet", "usual", "loud", "held up"],
)
def test_eight_sizes_by_four_forms_take_at_most_eight_trials(
    job: Job, noise: Noise, least_success: float
) -> None:
    found = score(job, noise, fraction_out=0.0, global_batch_size=24)
    assert found.success >= least_success
    assert max(found.num_trials) <= 8
    assert sum(found.regrets) / len(found.regrets) <= 0.03 or noise is HELD_UP


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
@pytest.mark.parametrize(
    ("noise", "least_success"), [(QUIET, 1.0), (USUAL, 0.9)], ids=["quiet", "usual"]
)
def test_six_sizes_by_four_forms_a_third_of_them_out_take_at_most_six_trials(
    job: Job, noise: Noise, least_success: float
) -> None:
    found = score(job, noise, fraction_out=1 / 3, global_batch_size=12)
    assert found.success >= least_success
    assert max(found.num_trials) <= 6


@pytest.mark.parametrize(
    ("global_batch_size", "fraction_out"),
    [(b, f) for b in (4, 8, 64, 96, 256) for f in (0.0, 0.3, 0.5) if b > 8 or f < 0.5],
)
def test_other_grids_too(global_batch_size: int, fraction_out: float) -> None:
    for job in JOBS:
        landscape = make_landscape(
            job, global_batch_size=global_batch_size, fraction_out=fraction_out, noise=QUIET
        )
        found = run(landscape)
        assert landscape.regret(found.chosen.configuration) <= 0.03, (job.name, found.reason)
        assert len(found.history.trials) <= 10


@pytest.mark.parametrize("baseline_size", [1, 24])
def test_from_either_end(baseline_size: int) -> None:
    for job in JOBS:
        landscape = make_landscape(job, baseline_size=baseline_size, noise=QUIET)
        found = run(landscape)
        assert landscape.regret(found.chosen.configuration) <= 0.03, job.name


def test_checkpointing_is_not_explored_where_it_cannot_pay() -> None:
    found = run(make_landscape(CPU_LONG, noise=USUAL))
    forms = [t.configuration.checkpointing.is_on for t in found.history.trials]
    assert forms.count(True) == 1, "one look, so that its price is a reading"
    assert found.reason == (
        "smaller and larger micro-batches are slower or ruled out, and memory does not call for "
        "checkpointing"
    )


def test_a_ladder_that_noise_has_ended_early_does_not_hide_the_largest_size() -> None:
    """One slow reading above the baseline must not keep what lies far beyond it out of sight."""
    space = make_space(24)
    rates = {1: 40.0, 2: 60.0, 3: 70.0, 4: 75.0, 6: 85.0, 8: 90.0, 12: 80.0, 24: 100.0}
    history = History(space=space)
    while isinstance(step := next_candidate(history), Next):
        form = 0.8 if step.configuration.checkpointing.is_on else 1.0
        rate = form * rates[step.configuration.micro_batch_size]
        history = with_trial(
            history,
            FinishedTrial(
                number=len(history.trials),
                purpose="search",
                configuration=step.configuration,
                outcome=measured([24 / rate] * 3, 24),
            ),
        )
    assert Configuration(micro_batch_size=24, accumulation_steps=1) in {
        t.configuration for t in history.trials
    }
    assert len(history.trials) <= len(space.candidates) // 4


def test_checkpointing_is_found_where_it_pays() -> None:
    landscape = make_landscape(GPU_PAYS, global_batch_size=64, fraction_out=0.5, noise=USUAL)
    found = run(landscape)
    assert found.chosen.configuration.checkpointing.is_on
    assert landscape.regret(found.chosen.configuration) == 0.0
    assert found.num_out_of_memory <= 2


def test_a_tight_memory_is_searched_as_well() -> None:
    for job in (GPU_SMALL, GPU_PAYS):
        landscape = make_landscape(job, global_batch_size=64, fraction_out=0.75, noise=USUAL)
        found = run(landscape)
        assert landscape.regret(found.chosen.configuration) <= 0.03, job.name
        assert found.chosen.configuration.checkpointing.is_on


def test_the_same_history_gives_the_same_candidate() -> None:
    landscape = make_landscape(GPU_SMALL, fraction_out=0.3, noise=LOUD)
    first, second = run(landscape), run(landscape)
    assert first.history.trials == second.history.trials
    # A run that was killed goes on as if it had not been.
    trials = first.history.trials
    for num in range(len(trials)):
        resumed = with_trials(
            History(
                space=landscape.space,
                usable_bytes=landscape.usable_bytes,
                gradient_bytes=landscape.gradient_bytes,
            ),
            trials[:num],
        )
        step = next_candidate(resumed)
        assert isinstance(step, Next)
        assert step.configuration == trials[num].configuration


SPACE = make_space(24)


def after(*trials: tuple[Configuration, Outcome]) -> Next | Over:
    return next_candidate(
        with_trials(
            History(space=SPACE),
            (
                FinishedTrial(number=n, purpose="search", configuration=c, outcome=o)
                for n, (c, o) in enumerate(trials)
            ),
        )
    )


def at(size: int, every_n_layers: int | None = None) -> Configuration:
    return next(
        c
        for c in SPACE.candidates
        if c.micro_batch_size == size and c.checkpointing.every_n_layers == every_n_layers
    )


def size_of(step: Next | Over) -> int:
    assert isinstance(step, Next), step
    return step.configuration.micro_batch_size


FULL = OutOfMemory(where="device", cause="full")
FAILED = Failed(cause="A shape does not fit.")
KILLED = Failed(cause="The process was killed from outside.", is_killed=True)


def fits(step_s: float = 1.0) -> Measured:
    return measured([step_s] * 4, 24)


def test_the_baseline_comes_first() -> None:
    step = after()
    assert isinstance(step, Next)
    assert step.configuration == SPACE.baseline
    assert step.why == "the present configuration"


def test_a_baseline_that_is_no_candidate_is_replaced_by_the_closest() -> None:
    baseline = Configuration(micro_batch_size=8, accumulation_steps=3)
    space = plan(baseline=baseline, num_rows=5)
    step = next_candidate(History(space=space))
    assert isinstance(step, Next)
    assert step.configuration.micro_batch_size == 4
    assert step.why == "the closest to the baseline"


def test_refusals_double_the_stride_downwards() -> None:
    assert size_of(after((at(24), FULL))) == 12
    assert size_of(after((at(24), FULL), (at(12), FULL))) == 3
    assert size_of(after((at(24), FULL), (at(12), FULL), (at(3), FULL))) == 1


def test_what_needs_least_memory_is_the_last_hope() -> None:
    step = after((at(8), FULL), (at(1), FULL))
    assert isinstance(step, Next)
    assert step.configuration == at(1, 1)
    assert after((at(8), FULL), (at(1), FULL), (at(1, 1), FULL)) == Over(
        reason="every candidate was tried or ruled out"
    )


def test_a_baseline_that_fails_is_asked_again_with_micro_batch_one() -> None:
    step = after((at(8), FAILED))
    assert isinstance(step, Next)
    assert step.configuration == at(1)
    assert step.why == "does the smallest micro-batch work?"
    over = after((at(8), FAILED), (at(1), FAILED))
    assert over == Over(reason="nothing could be measured: A shape does not fit.")
    assert size_of(after((at(8), FAILED), (at(1), fits()))) == 2


def test_a_baseline_that_takes_too_long_ends_the_search_at_the_second_time() -> None:
    slow = TimedOut(limit_s=60, cause="No end after 60 s.")
    assert isinstance(after((at(8), slow)), Next)
    assert after((at(8), slow), (at(1), slow)) == Over(
        reason="nothing could be measured: No end after 60 s."
    )


def test_a_stopped_baseline_is_not_asked_again() -> None:
    step = after((at(8), Stopped(cause="by hand")))
    assert isinstance(step, Next)
    assert step.configuration != at(8)


def test_a_lone_candidate_is_tried_once() -> None:
    space = make_space(1)
    history = History(space=plan(baseline=space.baseline, num_rows=10))
    step = next_candidate(history)
    assert isinstance(step, Next)
    history = with_trial(
        history,
        FinishedTrial(
            number=0, purpose="baseline", configuration=step.configuration, outcome=fits()
        ),
    )
    assert next_candidate(history) == Over(reason="every candidate was tried or ruled out")


@pytest.mark.parametrize("before", [(), (fits(),)], ids=["baseline", "after the baseline"])
def test_what_was_killed_by_somebody_comes_again_once(before: tuple[Outcome, ...]) -> None:
    history = History(space=make_space(24))
    for number, outcome in enumerate((*before, KILLED)):
        step = next_candidate(history)
        assert isinstance(step, Next)
        killed = step.configuration
        history = with_trial(
            history,
            FinishedTrial(number=number, purpose="search", configuration=killed, outcome=outcome),
        )
    again = next_candidate(history)
    assert isinstance(again, Next)
    assert again.configuration == killed
    assert again.why == "once more, since its process was killed from outside"
    history = with_trial(
        history,
        FinishedTrial(
            number=9, purpose="search", configuration=again.configuration, outcome=KILLED
        ),
    )
    third = next_candidate(history)
    assert isinstance(third, Over) or third.configuration != again.configuration


OUTCOMES: st.SearchStrategy[Outcome] = st.sampled_from(
    [
        FULL,
        OutOfMemory(where="host", cause="killed", is_certain=False),
        KILLED,
        fits(),
        fits(1.3),
        measured([0.7] * 3, 24, 900 * MIB),
        FAILED,
        TimedOut(limit_s=1, cause="slow"),
        Stopped(cause="by hand"),
    ]
)


@settings(max_examples=60, deadline=None)
@given(
    st.data(),
    st.sampled_from([1, 2, 6, 24, 60]),
    st.sampled_from([None, 500 * MIB]),
    st.booleans(),
)
def test_it_always_ends_and_never_proposes_what_is_known(
    data: st.DataObject, global_batch_size: int, usable_bytes: int | None, has_gradients: bool
) -> None:
    space = make_space(global_batch_size)
    history = History(
        space=space,
        usable_bytes=usable_bytes,
        gradient_bytes=100 * MIB if has_gradients else 0,
    )
    # A killed process may be tried twice.
    for number in range(2 * len(space.candidates) + 1):
        step = next_candidate(history)
        if isinstance(step, Over):
            assert step.reason
            return
        assert step.why
        assert step.configuration in history.open_candidates
        history = with_trial(
            history,
            FinishedTrial(
                number=number,
                purpose="search",
                configuration=step.configuration,
                outcome=data.draw(OUTCOMES),
            ),
        )
    pytest.fail("the search does not end")


def checkpointed(landscape: Landscape) -> Landscape:
    """The same landscape for somebody who checkpoints every layer today."""
    every_layer = replace(landscape.space.baseline, checkpointing=Checkpointing(every_n_layers=1))
    return replace(landscape, space=replace(landscape.space, baseline=every_layer))


@pytest.mark.parametrize("path", recorded(), ids=lambda path: path.stem)
def test_who_checkpoints_is_shown_what_training_without_would_do(path: Path) -> None:
    landscape = checkpointed(load(path))
    found = replay(landscape, next_candidate)
    tried = [t.configuration for t in found.history.trials]
    assert tried[0] == landscape.space.baseline
    assert not tried[1].checkpointing.is_on
    assert not found.chosen.configuration.checkpointing.is_on, "it costs more than it gains here"


def test_without_room_for_it_checkpointing_stays() -> None:
    space = replace(SPACE, baseline=at(8, every_n_layers=1))
    history = History(space=space)
    asked: list[Configuration] = []
    while isinstance(step := next_candidate(history), Next) and len(asked) < 12:
        asked.append(step.configuration)
        outcome = fits() if step.configuration.checkpointing.is_on else FULL
        history = with_trial(
            history,
            FinishedTrial(
                number=len(asked),
                purpose="search",
                configuration=step.configuration,
                outcome=outcome,
            ),
        )
    without = [c.micro_batch_size for c in asked if not c.checkpointing.is_on]
    assert without == [8, 4, 2, 1], "half the size after each refusal"
    assert history.measured
