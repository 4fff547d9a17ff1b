"""What goes with a global batch size, by the rules and at their ends."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cost.batch_advice import (
    SettingChange,
    advice_for_batch,
    advice_for_clipping,
    clipping_ratio,
    gain,
    learning_rate_factor,
)
from autotune.workload.facts import Hyperparameters
from tests.autotune.cost.builders import noise

PRESENT = Hyperparameters(
    learning_rate=1e-3, max_steps=1000, warmup_steps=100, adam_beta2=0.999, weight_decay=0.1
)


def changes_of(new: int, phi: float, optimizer: str = "adam") -> dict[str, SettingChange]:
    advice = advice_for_batch(
        16,
        new,
        optimizer=optimizer,  # type: ignore[arg-type]
        noise_scale=noise(phi, 2 * phi),
        present=PRESENT,
    )
    return {change.setting: change for change in advice.changes}


def test_the_gain_is_adascales() -> None:
    # Noise 15 rows at a batch of 16: sigma² = 15/16, mu² = 1, four times the batch.
    by_definition = (15 / 16 + 1) / (15 / 16 / 4 + 1)
    value, (low, high) = gain(16, 64, noise(15.0, 31.0))
    assert value == low == pytest.approx(by_definition)
    assert high == pytest.approx((31 / 16 + 1) / (31 / 16 / 4 + 1))


def test_adam_by_the_square_root_where_noise_carries_it() -> None:
    found = changes_of(64, phi=1e6)
    assert found["learning_rate"].new == pytest.approx(2e-3, rel=1e-4)
    assert found["max_steps"].new == 250
    assert found["warmup_steps"].new == 25
    assert found["adam_beta2"].new == pytest.approx(0.999**4)
    # Half-lives in samples are the same.
    assert 64 / -math.log(found["adam_beta2"].new or 0) == pytest.approx(16 / -math.log(0.999))
    assert found["weight_decay"].new == pytest.approx(0.2, rel=1e-4)


def test_the_gain_bounds_the_learning_rate() -> None:
    by_gain = (15 + 16) / (15 + 64) * 4
    found = changes_of(64, phi=15.0)
    assert by_gain < 2
    assert found["learning_rate"].factor == pytest.approx(by_gain)
    assert found["weight_decay"].factor == pytest.approx(4 / by_gain)
    assert changes_of(64, phi=15.0, optimizer="sgd")["learning_rate"].factor == pytest.approx(
        by_gain
    )


def test_sgd_in_proportion_and_without_betas() -> None:
    found = changes_of(64, phi=1e9, optimizer="sgd")
    assert found["learning_rate"].factor == pytest.approx(4, rel=1e-6)
    assert found["weight_decay"].factor == pytest.approx(1, rel=1e-6)
    assert "adam_beta2" not in found


@given(
    scale=st.floats(1.0, 100.0),
    share=st.floats(0.0, 1.0),
    optimizer=st.sampled_from(["sgd", "adam"]),
)
def test_back_and_forth_leaves_the_learning_rate(
    scale: float, share: float, optimizer: str
) -> None:
    gained = 1 + share * (scale - 1)
    forth = learning_rate_factor(scale, gained, optimizer)  # type: ignore[arg-type]
    back = learning_rate_factor(1 / scale, 1 / gained, optimizer)  # type: ignore[arg-type]
    assert forth * back == pytest.approx(1.0)
    assert 1 <= forth <= gained * (1 + 1e-12)


def test_an_unknown_noise_scale_leaves_the_learning_rate() -> None:
    advice = advice_for_batch(16, 64, optimizer="adam", noise_scale=None, present=PRESENT)
    assert (advice.gain, advice.gain_interval) == (1.0, (1.0, 4.0))
    assert advice.changes[0].new == pytest.approx(1e-3)
    assert advice.sentences[0] == (
        "From a global batch size of 16 to 64: one optimizer step is worth 1 of before (1 to 4), "
        "so that learning as much takes 4 times the samples."
    )
    assert advice.sentences[1] == (
        "Learning rate: 1 times (0.001 → 0.001), by the square root of the batch, as far as noise "
        "carries it (1 to 2)."
    )


def test_what_is_not_known_has_its_factor_alone() -> None:
    advice = advice_for_batch(16, 32, optimizer="adam", noise_scale=noise(100.0, 200.0))
    assert [change.new for change in advice.changes] == [None] * 5
    assert "→" not in " ".join(advice.sentences)
    assert "Adam's beta2: to the power of 2, so that" in " ".join(advice.sentences)


def test_what_does_not_apply_is_left_out() -> None:
    advice = advice_for_batch(
        16,
        32,
        optimizer="other",
        noise_scale=noise(100.0, 200.0),
        present=Hyperparameters(warmup_steps=0, weight_decay=0.0),
    )
    assert [change.setting for change in advice.changes] == ["learning_rate", "max_steps"]


def test_the_same_batch_changes_nothing() -> None:
    advice = advice_for_batch(16, 16, optimizer="adam", noise_scale=None, present=PRESENT)
    assert advice.changes == ()
    assert len(advice.sentences) == 1


@pytest.mark.parametrize(("num_ranks", "expected"), [(2, 1.29), (8, 1.81)])
def test_clipping_against_the_worked_figures(num_ranks: int, expected: float) -> None:
    assert clipping_ratio(31.0, 8, num_ranks) == pytest.approx(expected, abs=5e-3)


@given(phi=st.floats(0, 1e9), rows=st.integers(1, 1000), num_ranks=st.integers(2, 64))
def test_a_ranks_gradient_is_longer_than_the_mean_by_at_most_the_root_of_the_ranks(
    phi: float, rows: int, num_ranks: int
) -> None:
    found = clipping_ratio(phi, rows, num_ranks)
    assert 1 <= found <= math.sqrt(num_ranks) * (1 + 1e-12)


def test_the_threshold_makes_up_for_the_lower_end() -> None:
    known = advice_for_clipping((31.0, None), rows_per_rank=8, num_ranks=2, max_grad_norm=1.0)
    assert known == (
        "Each of 2 ranks clips its own gradient, which is expected to be 1.29 to 1.41 times as "
        "long as their mean: 1.29 times max_grad_norm (1 → 1.288) makes up for the least of it."
    )


@pytest.mark.parametrize("unknown", [None, (0.0, None), (0.1, None)])
def test_without_a_noise_scale_no_threshold_is_named(
    unknown: tuple[float, float | None] | None,
) -> None:
    advice = advice_for_clipping(unknown, rows_per_rank=8, num_ranks=4, max_grad_norm=1.0)
    assert advice == (
        "Each of 4 ranks clips its own gradient, which may be up to 2 times as long as their mean: "
        "the same max_grad_norm clips more, and by how much depends on a noise scale that is not "
        "known."
    )
