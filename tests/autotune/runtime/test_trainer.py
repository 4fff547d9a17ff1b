"""Local SGD under a real Trainer, on two real gloo ranks that are started once."""

from __future__ import annotations

import re

import pytest

from tests.autotune.runtime.ranks import Facts, facts_of

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Facts]:
    return facts_of("trainer_job", tmp_path_factory.mktemp("trainer"))


@pytest.fixture(scope="module")
def first(ranks: list[Facts]) -> Facts:
    return ranks[0]


def equal_before(averaged: list[int], num_steps: int) -> list[bool]:
    """Whether ranks are equal at the beginning of each step: at the first, and after averaging."""
    return [step == 0 or step in averaged for step in range(num_steps)]


def check(found: Facts, averaged: list[int], num_steps: int) -> None:
    """A training of so many steps, whose ranks averaged after some and were apart in between."""
    assert found["averaged"] == averaged
    assert found["global_step"] == num_steps
    assert found["equal_at_step_begin"] == equal_before(averaged, num_steps)
    assert found["spread"] == 0
    assert found["exchanges_again"] is True


def test_averaging_every_step_is_data_parallel_training(first: Facts) -> None:
    assert first["parity"]["every_step_averaged"] == [*range(1, 21)]
    assert first["parity"]["every_step_to_ddp"] <= 1e-6


def test_averaging_every_fourth_step_is_what_a_loop_by_hand_does(first: Facts) -> None:
    assert first["parity"]["every_fourth_to_hand"] <= 1e-6
    assert first["parity"]["every_fourth_to_ddp"] > 1e-4, "which is not what DDP does"
    check(first["parity"]["fourth"], [4, 8, 12, 16, 20], 20)


def test_every_evaluation_and_checkpoint_sees_the_mean(first: Facts) -> None:
    found = first["saving"]
    check(found, [3, 4, 5, 6, 8, 9, 10], 10)
    assert {"3", "6", "9"} <= {*found["at_evaluate"]}
    assert {*found["at_evaluate"].values()} == {0}
    assert found["at_save"] == {"5": 0, "10": 0}
    assert found["saved_error"] == {"5": 0, "10": 0}


def test_an_epoch_that_ends_with_an_evaluation_sees_the_mean(first: Facts) -> None:
    found = first["epochs"]
    assert found["averaged"] == [5, 8, 10, 15, 16]
    assert found["at_evaluate"] == found["at_save"] == {"8": 0, "16": 0}
    assert found["best_error"] == 0, "the best weights, which are loaded last, are left alone"


def test_what_a_later_callback_asks_for_sees_the_mean(first: Facts) -> None:
    found = first["asking"]
    check(found, [4, 6, 8, 9], 9)
    assert found["at_save"] == {"6": 0}
    assert found["saved_error"] == {"6": 0}


def test_a_resumed_training_keeps_its_phase(first: Facts) -> None:
    found = first["resumed"]
    assert found["whole"] == [4, 6, 8, 10]
    assert found["again"] == [8, 10]
    assert found["difference"] <= 1e-6


def test_steps_are_optimizer_steps_under_accumulation(first: Facts) -> None:
    check(first["accumulation"], [2, 4, 6], 6)


def test_first_steps_can_be_data_parallel_also_where_ranks_had_trained_apart(first: Facts) -> None:
    for found in (first["post_local"]["once"], first["post_local"]["twice"]):
        assert found["averaged"] == [7, 9]
        # The first local step is the fifth.
        assert found["equal_at_step_begin"] == [True] * 5 + [False, False, True, False]
        assert found["spread"] == 0
    (told,) = first["post_local"]["told"]
    assert "the optimizer begins anew" in told


def test_rounds_grow_as_the_learning_rate_falls(first: Facts) -> None:
    found = first["qsr"]
    # Two steps while it rises to 0.05; then (0.1 / 0.044)² = 5, and what is left.
    assert found["averaged"] == [2, 4, 9, 12]
    # The first step has a rate of zero.
    assert found["equal_at_step_begin"][:2] == [True, True]
    assert found["equal_at_step_begin"][2:] == equal_before(found["averaged"], 12)[2:]
    assert found["spread"] == 0


@pytest.mark.parametrize("name", ["reentrant", "not reentrant"])
def test_checkpointing_changes_nothing(first: Facts, name: str) -> None:
    check(first["variants"][name], [4, 8], 8)
    assert first["variants"][name]["difference"] <= 1e-6


def test_compiling_changes_nothing(first: Facts) -> None:
    check(first["compiled"], [4, 8], 8)
    assert first["compiled"]["difference"] <= 1e-6
    assert first["compiled"]["wrapped"] == "OptimizedModule"


def test_bf16_is_averaged_in_full_precision(first: Facts) -> None:
    check(first["variants"]["bf16"], [4, 8], 8)
    assert 0 < first["variants"]["bf16"]["difference"] < 0.05


def test_adapters_are_averaged_without_their_base(first: Facts) -> None:
    found = first["adapters"]
    check(found, [3, 5], 5)
    assert found["num_bytes"] == found["expected_bytes"] < found["all_bytes"] / 10
    assert found["num_collectives"] == 1


def test_a_trainer_can_be_trained_again(first: Facts) -> None:
    once, twice = first["again"]["runs"]
    assert once["averaged"] == twice["averaged"] == [3, 4]
    assert twice["equal_at_step_begin"] == [True, False, False, True] * 2
    assert twice["spread"] == 0
    assert twice["exchanges_again"] is True


def test_after_an_accident_nothing_is_averaged_and_training_begins_with_equal_ranks(
    first: Facts,
) -> None:
    found = first["accident"]
    assert found["averaged"] == []
    assert found["spread"] > 1e-4
    assert found["flag"] is True
    check(found["later"], [4, 5], 5)


def test_a_trainer_that_finds_its_batch_size_starts_over(first: Facts) -> None:
    found = first["found"]
    assert found["micro_batch_size"] < 3
    assert found["averaged"] == [3, 4]
    assert found["spread"] == 0


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("FSDP at the beginning", "this job runs under FSDP"),
        ("FSDP at attach", "this job runs under FSDP"),
        ("DEEPSPEED at the beginning", "this job runs under DeepSpeed"),
        ("DEEPSPEED at attach", "this job runs under DeepSpeed"),
        ("fp16", "does not work with fp16.* Use bf16"),
        ("not attached", "was not attached.*attach\\(trainer\\)"),
    ],
)
def test_what_cannot_work_is_refused_with_cause_and_remedy(
    first: Facts, what: str, expected: str
) -> None:
    assert re.search(expected, first["refusals"][what])


def test_settings_that_defeat_it_are_changed_or_told_once(first: Facts) -> None:
    found = first["settings"]
    assert found["averages_tokens"] is False
    assert found["averages_tokens_later"] is True
    changed, remaining = found["told"]
    assert "average_tokens_across_devices is switched off" in changed
    assert "include_num_input_tokens_seen=False" in remaining
    assert "set logging_steps to 4 or more" in remaining
    assert "average_tokens" not in remaining


def test_batches_that_the_first_rank_sends_out_are_told(first: Facts) -> None:
    (told,) = first["settings"]["told_of_stream"]
    assert 'accelerator_config={"dispatch_batches": False}' in told


def test_a_recommendation_is_in_force(first: Facts) -> None:
    found = first["applied"]
    assert found["steps"] == 3
    check(found["local"], [3, 4], 4)
    assert found["is_attached_later"] is False
    assert found["plain"]["averaged"] == []
    assert found["plain"]["equal_at_step_begin"] == [True] * 4
    assert found["rows"] == [2] * 8


def test_ranks_that_average_after_other_steps_are_told_so(ranks: list[Facts]) -> None:
    for found in ranks:
        assert found["parted"]["told"].startswith(
            "The ranks have made different numbers of steps, 3 to 4,"
        )
