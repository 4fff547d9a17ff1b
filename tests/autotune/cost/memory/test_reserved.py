"""Runs put together from traced segments, and what they make an allocator reserve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.cost.memory.allocator_settings import AllocatorSettings, parse
from autotune.cost.memory.reserved import NUM_STEPS, Run, gradient_bytes, reserved_bytes
from autotune.cost.memory.trace import replay
from tests.autotune.cost.memory.traces import MIB, event, step


def test_a_run_reserves_what_its_blocks_need() -> None:
    # 100 for the weights; activations of 10 b, logits of 2 b; 100 for the gradients, 200 for the
    # optimizer's state; the temporary ten fit where activations or logits were.
    run = Run(step(), accumulation_steps=1)
    one = run.at(1)
    # 10 has a segment of its own, 2 comes from one of 20.
    assert one.reserved_bytes == (100 + 10 + 20 + 100 + 200) * MIB
    assert one.allocated_bytes == (100 + 200 + 10 + 2 + 100) * MIB
    assert run.at(20).reserved_bytes == (100 + 200 + 40 + 100 + 200) * MIB
    assert (one.num_retries, one.refused_bytes) == (0, None)


def test_accumulation_repeats_the_later_micro_step() -> None:
    once, twice = Run(step()), Run(step(), accumulation_steps=2)
    later = 6
    assert twice.num_events(1) == once.num_events(1) + NUM_STEPS * later
    # The temporary ten now stand beside the activations.
    assert twice.at(1).allocated_bytes == once.at(1).allocated_bytes + 10 * MIB
    assert Run(step(), accumulation_steps=8).num_events(1) == twice.num_events(1)


def test_all_micro_batches_of_a_step_wait_from_its_beginning_to_its_end() -> None:
    waits = replace(step(), window=(event(40, "activations", "forward", mib_per_sample=3.0),))
    run, plain = Run(waits, accumulation_steps=2), Run(step(), accumulation_steps=2)
    assert run.at(4).allocated_bytes == plain.at(4).allocated_bytes + 2 * 12 * MIB
    assert run.at(4, num_waiting=16).allocated_bytes == (
        plain.at(4).allocated_bytes + 16 * 12 * MIB
    )
    # They are given back before those of the next step come.
    assert run.at(1, num_waiting=64).reserved_bytes < plain.at(1).reserved_bytes + 280 * MIB


def test_what_is_kept_comes_after_the_weights_and_stays() -> None:
    run = Run(step(), kept_bytes=[8 * MIB, 8 * MIB])
    plain = Run(step())
    assert run.num_events(1) == plain.num_events(1) + 2
    assert run.at(1).allocated_bytes == plain.at(1).allocated_bytes + 16 * MIB
    # They fill a segment of 20, whose last 4 MiB hold the logits.
    assert run.at(1).reserved_bytes == plain.at(1).reserved_bytes


def test_what_passes_after_every_step_is_given_back() -> None:
    run, plain = Run(step(), passing_bytes=64 * MIB), Run(step())
    assert run.num_events(1) == plain.num_events(1) + 2 * NUM_STEPS
    assert run.at(1).allocated_bytes == plain.at(1).allocated_bytes
    assert Run(step(), passing_bytes=700 * MIB).at(1).allocated_bytes == (300 + 700) * MIB


def test_the_allocator_settings_of_the_job_count() -> None:
    asked = step(weights_mib=33.0)
    assert reserved_bytes(asked, 3) == Run(asked).at(3).reserved_bytes
    pages = reserved_bytes(asked, 3, settings=AllocatorSettings(expandable_segments=True))
    assert pages % (20 * MIB) == 0
    rounded = reserved_bytes(asked, 3, settings=parse("roundup_power2_divisions:1"))
    assert rounded == reserved_bytes(asked, 3)
    assert reserved_bytes(asked, 3, settings=parse("roundup_power2_divisions:2")) > rounded


def test_a_device_that_is_too_small_refuses() -> None:
    short = Run(step()).at(1, capacity_bytes=300 * MIB)
    assert short.refused_bytes == 200 * MIB


def test_gradients_are_what_the_first_backward_pass_leaves() -> None:
    assert gradient_bytes(step()) == 100 * MIB


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_more_steps_reserve_no_more(accumulation_steps: int) -> None:
    from autotune.cost.memory import allocator

    def reserved(num_steps: int) -> int:
        keys, sizes = [], []
        for number, is_free, one in replay(
            step(), micro_batch_size=7, accumulation_steps=accumulation_steps, num_steps=num_steps
        ):
            keys.append(number)
            sizes.append(0 if is_free else one.size.at(7))
        return allocator.replay(keys, sizes).reserved_bytes

    assert reserved(NUM_STEPS) == reserved(NUM_STEPS + 4)


def test_a_single_row_may_do_something_else() -> None:
    plain = step()
    alone = replace(
        plain,
        one_row=(
            event(30, "activations", "forward", mib=50),
            event(2, "gradients", "backward", mib=100),
            event(30, "activations", "backward", mib=50, is_free=True),
        ),
        later_one_row=(),
    )
    run = Run(alone)
    assert run.at(1).allocated_bytes == (100 + 200 + 50 + 100) * MIB
    assert run.at(2) == Run(plain).at(2)


def test_sizes_are_rounded_up_to_whole_bytes() -> None:
    odd = event(0, "weights", "setup", mib=0.0, mib_per_sample=1 / 3)
    assert odd.size.at(1) == 349526
