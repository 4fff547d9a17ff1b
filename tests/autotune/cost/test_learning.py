"""Sample efficiency against the figures of runs, and at its ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cost.learning import (
    NOT_NEEDED,
    LocalSGDModel,
    SampleEfficiency,
    assumed_local_sgd,
    batch_efficiency,
    optimizer_kind,
)
from autotune.cost.noise import NoiseScale
from tests.autotune.cost.builders import UNKNOWN, noise

SEEN = LocalSGDModel(
    first=0.88,
    first_interval=(0.83, 0.93),
    kappa=0.0033,
    kappa_interval=(0.0032, 0.0034),
)


def test_a_larger_batch_at_the_lower_end_of_the_noise_scale() -> None:
    # (15 + 16) / (15 + 64) = 0.392, as measured for four times the batch at that noise scale.
    found = batch_efficiency(64, 16, noise(15.0, 31.0, 20.0))
    assert found.value == pytest.approx(0.392, abs=5e-4)
    assert found.interval == pytest.approx((31 / 79, 47 / 95))
    assert found.basis == "measured"


def test_a_smaller_batch_at_the_upper_end() -> None:
    found = batch_efficiency(8, 16, noise(15.0, 31.0, 20.0))
    assert found.value == pytest.approx(47 / 39)
    assert found.interval == pytest.approx((47 / 39, 31 / 23))
    assert batch_efficiency(8, 16, noise(15.0, None)).value == 1.0


def test_the_reference_needs_no_noise_scale() -> None:
    assert batch_efficiency(16, 16, None) == NOT_NEEDED
    assert batch_efficiency(16, 16, noise(1.0, 2.0)) == NOT_NEEDED


@pytest.mark.parametrize("unknown", [None, UNKNOWN])
def test_without_a_noise_scale_more_rows_teach_no_more(unknown: NoiseScale | None) -> None:
    found = batch_efficiency(64, 16, unknown)
    assert (found.value, found.interval, found.basis) == (0.25, (0.25, 1.0), "assumed")


@given(
    low=st.floats(0, 1e6),
    more=st.floats(0, 1e6),
    batch=st.integers(1, 10_000),
    reference=st.integers(1, 10_000),
)
def test_the_value_claims_least_and_never_passes_the_ideal(
    low: float, more: float, batch: int, reference: int
) -> None:
    found = batch_efficiency(batch, reference, noise(low, low + more))
    assert found.interval[0] == found.value <= found.interval[1]
    ideal = max(1.0, reference / batch)
    assert min(1.0, reference / batch) <= found.value <= ideal * (1 + 1e-12)


@pytest.mark.parametrize(
    ("steps", "measured"),
    # Sample efficiency of a small GPT-2 under AdamW, one seed, worth about ±0.05.
    [(4, 0.88), (16, 0.82), (64, 0.73)],
)
def test_what_is_assumed_of_adam_meets_the_runs_that_it_comes_from(
    steps: int, measured: float
) -> None:
    found = assumed_local_sgd("adam", clips=False).efficiency(steps)
    assert found.value == pytest.approx(measured, abs=0.05)
    low, high = found.interval
    assert low < measured < high
    assert high - low > 0.15, "it says how little is known"
    assert found.basis == "assumed"
    assert SEEN.efficiency(steps).value == pytest.approx(measured, abs=0.02)


def test_one_local_step_is_plain_data_parallel() -> None:
    assert assumed_local_sgd("adam", clips=True).efficiency(1) == NOT_NEEDED


def test_sgd_loses_nothing_by_averaging_alone() -> None:
    exact = assumed_local_sgd("sgd", clips=False).efficiency(2)
    assert exact.value == pytest.approx(1 / 1.004)
    assert exact.interval == pytest.approx((1 / 1.005, 1 / 1.003))
    for kind, clips in (("sgd", True), ("adam", False), ("other", False)):
        model = assumed_local_sgd(kind, clips=clips)  # type: ignore[arg-type]
        assert (model.first, model.first_interval) == (0.9, (0.75, 1.0))


@given(steps=st.integers(1, 10_000), more=st.integers(1, 1000))
def test_more_local_steps_never_teach_more(steps: int, more: int) -> None:
    first, second = SEEN.efficiency(steps), SEEN.efficiency(steps + more)
    assert first.value > second.value
    assert first.interval[0] > second.interval[0]


def test_effects_multiply_and_the_weaker_basis_stays() -> None:
    batch = SampleEfficiency(value=0.8, interval=(0.7, 0.9), basis="measured")
    local = SampleEfficiency(value=0.5, interval=(0.4, 1.0), basis="assumed")
    both = batch.times(local)
    assert both.value == pytest.approx(0.4)
    assert both.interval == pytest.approx((0.28, 0.9))
    assert both.basis == local.times(batch).basis == "assumed"
    assert batch.times(NOT_NEEDED) == NOT_NEEDED.times(batch) == batch
    assert NOT_NEEDED.times(NOT_NEEDED) == NOT_NEEDED


def test_the_public_form() -> None:
    assert NOT_NEEDED.to_json() == {"value": 1.0, "interval": [1.0, 1.0], "basis": "not needed"}
    assert str(NOT_NEEDED) == "1"
    local = assumed_local_sgd("adam", clips=True).efficiency(16)
    assert str(local) == "0.85 (0.70 to 0.96, assumed)"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("adamw_torch_fused", "adam"),
        ("paged_adamw_8bit", "adam"),
        ("AdamW", "adam"),
        ("sgd", "sgd"),
        ("SGD", "sgd"),
        ("schedule_free_sgd", "other"),
        ("adafactor", "other"),
        ("lion_32bit", "other"),
    ],
)
def test_optimizers_by_name(name: str, kind: str) -> None:
    assert optimizer_kind(name) == kind
