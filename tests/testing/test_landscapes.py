"""Landscapes go to JSON and back, and replaying one runs nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.outcome import Measured, OutOfMemory
from autotune.search.order import next_candidate
from tests.testing.landscapes import CPU_SHORT, JOBS, Noise, load, make_landscape, replay

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))


def test_a_landscape_is_written_and_read(tmp_path: Path) -> None:
    landscape = make_landscape(CPU_SHORT, fraction_out=0.3)
    landscape.save(tmp_path / "landscape.json")
    assert load(tmp_path / "landscape.json") == landscape


def test_a_limit_rules_out_the_wanted_part() -> None:
    for job in JOBS:
        landscape = make_landscape(job, fraction_out=0.25)
        out = [e for e in landscape.entries if isinstance(e.outcome, OutOfMemory)]
        assert len(out) == 8


def test_noise_is_in_the_readings_and_not_in_the_truth() -> None:
    quiet = make_landscape(CPU_SHORT, noise=Noise(between_trials=0.0, between_steps=0.0))
    noisy = make_landscape(CPU_SHORT, noise=Noise(between_trials=0.05, between_steps=0.05))
    for first, second in zip(quiet.entries, noisy.entries, strict=True):
        assert first.true_samples_per_s == second.true_samples_per_s
        assert isinstance(first.outcome, Measured)
        assert isinstance(second.outcome, Measured)
        assert first.outcome.samples_per_s == pytest.approx(first.true_samples_per_s)
        assert first.outcome.samples_per_s != second.outcome.samples_per_s


def test_a_replay_takes_outcomes_from_the_landscape() -> None:
    landscape = make_landscape(CPU_SHORT)
    found = replay(landscape, next_candidate, max_trials=3)
    assert len(found.history.trials) == 3
    assert found.reason == "the trials are used up"
    for trial in found.history.trials:
        assert trial.outcome == landscape.outcome(trial.configuration)
    assert found.history.trials[0].purpose == "baseline"


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_landscapes_are_searched_well(path: Path) -> None:
    landscape = load(path)
    found = replay(landscape, next_candidate)
    # The best of many readings is in part a lucky one.
    assert landscape.regret(found.chosen.configuration) <= 0.05
    assert len(found.history.trials) <= len(landscape.space.candidates) / 4
