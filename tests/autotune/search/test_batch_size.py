"""Whether another global batch size is tried where the user leaves it open."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.configuration import Configuration
from autotune.cost.memory.foresight import Foresight, Reckoner
from autotune.cost.memory.outside import Target
from autotune.events import NoiseScaleMeasured
from autotune.outcome import Failed, GradientNorms, GradientWindow, Measured, Phases
from autotune.search.batch_size import known_efficiencies, measuring_s, try_batch_sizes
from autotune.search.evidence.closing import with_trial, with_trials
from autotune.search.evidence.finished import FinishedTrial
from autotune.search.evidence.history import History
from autotune.space import plan
from autotune.trial.protocol import Command, GradientsMeasured, MeasureGradients
from tests.autotune.cost.memory.traces import traced
from tests.autotune.trial import fake_worker
from tests.testing.landscapes import MIB, measured
from tests.testing.scripted import Scripted

BEST = Configuration(micro_batch_size=8, accumulation_steps=2)
SIZES = (1, 1024)
FACTS = replace(fake_worker.FACTS, num_rows=10_000)


def known(noise_scale: float | None) -> NoiseScaleMeasured:
    low = 0.0 if noise_scale is None else noise_scale * 0.8
    return NoiseScaleMeasured(
        value=noise_scale,
        interval=(low, None if noise_scale is None else noise_scale * 1.25),
        num_windows=20,
        num_micro_batches=2,
        rows_per_micro_batch=8,
        is_preconditioned=False,
        note="made up",
    )


def step(*, micro_s: float, rest_s: float, configuration: Configuration = BEST) -> Measured:
    """Steps whose time is so much a micro-batch, and a rest."""
    num = configuration.accumulation_steps
    step_s = micro_s * num + rest_s
    phases = Phases(
        data_s=0.0,
        forward_s=micro_s * num / 3,
        backward_s=micro_s * num * 2 / 3,
        optimizer_s=rest_s,
    )
    found = measured([step_s] * 4, configuration.global_batch_size, 500 * MIB)
    return replace(found, phases=phases)


def engine(outcome: Measured, configuration: Configuration = BEST) -> Scripted:
    history = with_trial(
        History(space=plan(baseline=configuration, num_rows=None)),
        FinishedTrial(number=0, purpose="baseline", configuration=configuration, outcome=outcome),
    )
    run = Scripted(
        history, lambda c: step(micro_s=0.1, rest_s=0.4, configuration=c), path=Path("run")
    )
    run.plan = SimpleNamespace(repair_loss=False, find_unused=False)
    return run


def test_a_large_rest_and_much_noise_call_for_a_larger_batch() -> None:
    run = engine(step(micro_s=0.1, rest_s=0.4))
    try_batch_sizes(run.as_engine, FACTS, SIZES, known(200.0))
    ((configuration, why),) = run.asked
    # Learning per second of B = 16 s: 16 s / (0.2 s + 0.4) x (160 + 16) / (160 + 16 s), by s.
    best = max((0.5, 2, 4, 8, 16), key=lambda s: 16 * s / (0.2 * s + 0.4) * 176 / (160 + 16 * s))
    assert configuration == replace(BEST, accumulation_steps=int(2 * best))
    assert why == f"a global batch of {int(16 * best)} instead of 16 promises most"
    trial = run.history.measured[-1]
    assert run.history.efficiency(trial.configuration).value == pytest.approx(
        176 / (160 + 16 * best)
    )


def test_little_noise_calls_for_a_smaller_batch() -> None:
    run = engine(step(micro_s=0.1, rest_s=0.01))
    try_batch_sizes(run.as_engine, FACTS, SIZES, known(2.0))
    assert [c.global_batch_size for c, _ in run.asked] == [8]


def test_a_noise_scale_that_is_not_known_keeps_the_batch() -> None:
    unknown = engine(step(micro_s=0.1, rest_s=0.4))
    try_batch_sizes(unknown.as_engine, FACTS, (16, 1024), known(None))
    assert unknown.asked == []


def test_sizes_stay_within_the_range() -> None:
    run = engine(step(micro_s=0.1, rest_s=0.4))
    try_batch_sizes(run.as_engine, FACTS, (16, 32), known(10_000.0))
    assert [c.global_batch_size for c, _ in run.asked] == [32]


def test_a_size_that_is_predicted_not_to_fit_is_not_tried() -> None:
    whole = Configuration(micro_batch_size=16, accumulation_steps=1)
    target = Target(name="CPU", kind="cpu", total_bytes=10**12, total_from="by hand")
    law = Foresight(reckoner=Reckoner(traced(), target, process_bytes=450 * MIB))
    # At once 450 + 400 + 12 * 16 = 1042 MiB; with gradients to add up 10 more.
    for usable_mib, sizes in ((1045, []), (1060, [256])):
        run = engine(step(micro_s=0.1, rest_s=0.4, configuration=whole), whole)
        run.history = replace(run.history, foresight=law, usable_bytes=usable_mib * MIB)
        try_batch_sizes(run.as_engine, FACTS, SIZES, known(1000.0))
        assert [c.global_batch_size for c, _ in run.asked] == sizes


def test_a_size_that_is_kept_measures_no_noise() -> None:
    run = engine(step(micro_s=0.1, rest_s=0.4))
    try_batch_sizes(run.as_engine, FACTS, None, None)
    assert (run.asked, run.events, run.warnings) == ([], [], [])


def norms(noise_scale: float) -> GradientNorms:
    """What gradients of 8 rows show whose noise scale is known: E|g|² = |G|² (1 + phi / b)."""
    return GradientNorms(
        windows=tuple(
            GradientWindow(
                step=30 + n,
                micro_squared_norms=(1 + noise_scale / 8,) * 2,
                mean_squared_norm=1 + noise_scale / 16,
            )
            for n in range(20)
        ),
        num_micro_batches=2,
        rows_per_micro_batch=8,
    )


class Pool:
    """Answers with gradients, or with a fault."""

    def __init__(self, reply: object) -> None:
        self.reply = reply
        self.asked: list[Command] = []

    def ask(self, command: Command, **options: object) -> object:
        self.asked.append(command)
        return self.reply


def test_the_noise_scale_is_measured_where_a_step_has_two_micro_batches() -> None:
    alone = Configuration(micro_batch_size=16, accumulation_steps=1)
    run = engine(step(micro_s=0.2, rest_s=0.4, configuration=alone), alone)
    run.pool = pool = Pool(GradientsMeasured(gradients=norms(200.0)))
    try_batch_sizes(run.as_engine, FACTS, SIZES, None)
    (command,) = pool.asked
    assert isinstance(command, MeasureGradients)
    assert command.configuration == BEST
    (event,) = run.events
    assert isinstance(event, NoiseScaleMeasured)
    assert event.value is not None
    assert math.isclose(event.value, 200.0, rel_tol=0.05)
    assert event.plain_interval == event.interval
    assert run.asked


def test_a_noise_scale_that_cannot_be_measured_keeps_the_batch_and_says_why() -> None:
    run = engine(step(micro_s=0.1, rest_s=0.4))
    run.pool = Pool(Failed(cause="It broke."))
    try_batch_sizes(run.as_engine, FACTS, SIZES, None)
    assert run.asked == []
    assert run.warnings == ["The gradient noise scale could not be measured: It broke."]


def test_a_run_that_is_taken_up_again_still_weighs_the_sizes_that_it_has_tried() -> None:
    first = engine(step(micro_s=0.1, rest_s=0.4))
    try_batch_sizes(first.as_engine, FACTS, SIZES, known(50.0))
    ((larger, _),) = first.asked
    value = (0.8 * 50 + 16) / (0.8 * 50 + larger.global_batch_size)
    assert larger.global_batch_size > 16
    assert first.history.efficiency(larger).value == pytest.approx(value)

    trials = first.history.trials
    again = Scripted(
        with_trials(
            History(
                space=first.history.space,
                batch_efficiencies=known_efficiencies(
                    known(50.0), (t.configuration for t in trials), 16
                ),
            ),
            trials,
        ),
        lambda c: step(micro_s=0.1, rest_s=0.4, configuration=c),
        path=Path("run"),
    )
    assert again.history.efficiency(larger).value == pytest.approx(value)
    assert again.history.leaders[0].configuration == first.history.leaders[0].configuration
    try_batch_sizes(again.as_engine, FACTS, SIZES, known(50.0))
    # What is tried is not tried again, nor is a larger one taken for as good as the reference.
    assert again.asked == []
    assert again.history.efficiency(larger).value == pytest.approx(value)
    assert again.history.efficiency(BEST).value == 1.0


def test_nothing_is_known_of_sizes_without_a_noise_scale() -> None:
    assert known_efficiencies(None, [replace(BEST, accumulation_steps=8)], 16) == {}


def test_no_global_batch_holds_more_rows_than_there_are() -> None:
    run = engine(step(micro_s=0.1, rest_s=0.4))
    try_batch_sizes(run.as_engine, replace(FACTS, num_rows=100), SIZES, known(10_000.0))
    assert [c.global_batch_size for c, _ in run.asked] == [64]


def test_what_confirmation_needs_is_not_spent_on_the_noise_scale() -> None:
    # Steps of 0.6 s: 30 of them, and 20 that take half as long again.
    assert measuring_s(0.6) == pytest.approx(36.0)
    for reserve_s, is_asked in ((63.0, True), (65.0, False)):
        run = engine(step(micro_s=0.1, rest_s=0.4))
        run.pool = pool = Pool(GradientsMeasured(gradients=norms(200.0)))
        try_batch_sizes(run.as_engine, FACTS, SIZES, None, reserve_s=reserve_s)
        assert bool(pool.asked) is is_asked
        assert bool(run.asked) is is_asked
        assert (
            run.warnings
            == [
                "There is no time to measure the gradient noise scale: it takes 36 s.",
            ][: not is_asked]
        )
    # Where it is known already, no trial is begun that confirmation has no time for.
    late = engine(step(micro_s=0.1, rest_s=0.4))
    try_batch_sizes(late.as_engine, FACTS, SIZES, known(200.0), reserve_s=100.0)
    assert late.asked == []
