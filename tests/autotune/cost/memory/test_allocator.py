"""The model of the caching allocator against sequences reckoned by hand from its rules."""

from __future__ import annotations

import random

import pytest

from autotune.cost.memory.allocator import (
    CachingAllocator,
    OutOfDeviceMemory,
    replay,
)
from autotune.cost.memory.allocator_settings import UNCHANGED, AllocatorSettings, parse

MIB = 2**20
KIB = 2**10
EXPANDABLE = AllocatorSettings(expandable_segments=True)


def filled(
    sizes: list[int], settings: AllocatorSettings = UNCHANGED, **limits: int
) -> CachingAllocator:
    allocator = CachingAllocator(settings, **limits)
    for key, size in enumerate(sizes):
        allocator.allocate(key, size)
    return allocator


@pytest.mark.parametrize(
    ("asked", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (101 * MIB, 101 * MIB, 102 * MIB),
    ],
)
def test_sizes_of_blocks_and_segments(asked: int, block: int, segment: int) -> None:
    allocator = filled([asked])
    assert allocator.rounded(asked) == block
    assert allocator.reserved_bytes == segment
    # A rest of at most 1 MiB stays with a large block; in the small pool it is split off.
    rest = segment - block
    is_split = rest > MIB if asked > MIB else rest >= 512
    assert allocator.allocated_bytes == (block if is_split else segment)
    assert allocator.free_blocks == ((rest,) if is_split else ())


def test_nothing_is_allocated_for_nothing_and_unknown_blocks_are_passed_over() -> None:
    allocator = filled([0])
    allocator.release(0)
    allocator.release(7)
    assert (allocator.reserved_bytes, allocator.live_blocks) == (0, {})


def test_small_requests_share_a_segment_and_large_ones_another() -> None:
    allocator = filled([512] * 4 + [3 * MIB, 5 * MIB, 9 * MIB])
    assert allocator.reserved_bytes == 2 * MIB + 20 * MIB
    assert allocator.free_blocks == (2 * MIB - 4 * 512, 3 * MIB)


def test_the_smallest_block_that_holds_it_is_taken_and_neighbours_join() -> None:
    allocator = filled([16 * MIB, 12 * MIB, 30 * MIB])
    for key in range(3):
        allocator.release(key)
    assert allocator.reserved_bytes == 58 * MIB
    allocator.allocate(3, 11 * MIB + 512)  # fits into 12, the rest is too small to split
    assert allocator.live_blocks == {3: 12 * MIB}
    allocator.allocate(4, 13 * MIB)  # 16, split
    assert allocator.live_blocks[4] == 13 * MIB
    assert allocator.reserved_bytes == 58 * MIB
    allocator.release(4)
    assert sorted(allocator.free_blocks) == [16 * MIB, 30 * MIB]


def test_blocks_of_two_segments_never_join() -> None:
    allocator = filled([16 * MIB] * 8)
    for key in range(8):
        allocator.release(key)
    for key in range(8, 12):
        allocator.allocate(key, 32 * MIB)
    assert allocator.reserved_bytes == 256 * MIB


def test_large_segments_are_split_for_what_comes_later() -> None:
    allocator = filled([32 * MIB] * 4)
    for key in range(4):
        allocator.release(key)
    for key in range(4, 12):
        allocator.allocate(key, 16 * MIB)
    assert allocator.reserved_bytes == 128 * MIB


def test_an_expandable_segment_grows_by_pages_and_is_used_by_any_size() -> None:
    allocator = CachingAllocator(EXPANDABLE)
    held = []
    for key in range(8):
        allocator.allocate(key, 16 * MIB)
        held.append(allocator.reserved_bytes // MIB)
    assert held == [20, 40, 60, 80, 80, 100, 120, 140]
    for key in range(8):
        allocator.release(key)
    assert allocator.free_blocks == (140 * MIB,)
    for key in range(8, 12):
        allocator.allocate(key, 32 * MIB)
    assert allocator.reserved_bytes == 140 * MIB


def test_the_small_pool_of_an_expandable_segment_grows_by_two_mebibytes() -> None:
    allocator = filled([MIB] * 3, EXPANDABLE)
    assert allocator.reserved_bytes == 4 * MIB
    assert allocator.free_blocks == (MIB,)


def test_a_block_that_can_still_grow_is_taken_last() -> None:
    # Pages: 40 MiB mapped; 25 + 15 handed out, then 25 free inside and a tail of its own.
    allocator = filled([25 * MIB, 15 * MIB, 8 * MIB], EXPANDABLE)
    allocator.release(0)
    assert allocator.free_blocks == (25 * MIB, 12 * MIB)
    # Twelve would be the best fit, but it stands before unmapped memory.
    allocator.allocate(3, 10 * MIB)
    assert allocator.free_blocks == (15 * MIB, 12 * MIB)


def test_retry_gives_back_what_is_wholly_free() -> None:
    allocator = filled([30 * MIB, 30 * MIB], capacity_bytes=64 * MIB)
    allocator.release(0)
    allocator.release(1)
    allocator.allocate(2, 50 * MIB)
    assert (allocator.num_retries, allocator.reserved_bytes) == (1, 50 * MIB)
    assert allocator.peak_reserved_bytes == 60 * MIB


def test_a_segment_in_use_is_not_given_back_and_memory_runs_out() -> None:
    allocator = filled([15 * MIB, 15 * MIB, 30 * MIB], capacity_bytes=64 * MIB)
    allocator.release(2)
    allocator.release(1)
    with pytest.raises(OutOfDeviceMemory) as caught:
        allocator.allocate(3, 50 * MIB)
    # Sixteen for the first, which is in use; the others went.
    assert (caught.value.asked_bytes, caught.value.reserved_bytes) == (50 * MIB, 16 * MIB)
    assert allocator.num_retries == 1


def test_pages_of_an_expandable_segment_are_given_back_and_their_gap_is_filled_first() -> None:
    allocator = filled([60 * MIB, 20 * MIB, 60 * MIB], EXPANDABLE, capacity_bytes=160 * MIB)
    allocator.release(0)
    allocator.allocate(3, 60 * MIB)
    allocator.release(3)
    allocator.allocate(4, 512)
    # Fifty lie free at the front of the large pool; ninety are asked for.
    with pytest.raises(OutOfDeviceMemory):
        allocator.allocate(5, 90 * MIB)
    assert allocator.reserved_bytes == (20 + 60 + 2) * MIB
    allocator.allocate(6, 40 * MIB)
    assert allocator.reserved_bytes == (20 + 60 + 40 + 2) * MIB
    assert allocator.live_blocks[6] == 40 * MIB
    allocator.release(1)
    assert max(allocator.free_blocks) == 20 * MIB


def test_blocks_beyond_the_split_limit_stay_whole() -> None:
    limited = parse("max_split_size_mb:64")
    allocator = filled([100 * MIB], limited)
    allocator.release(0)
    # Smaller requests do not get it, and one far smaller than it does not either.
    allocator.allocate(1, 30 * MIB)
    assert allocator.reserved_bytes == 130 * MIB
    allocator.allocate(2, 79 * MIB)
    assert allocator.reserved_bytes == 210 * MIB
    allocator.allocate(3, 90 * MIB)
    assert (allocator.reserved_bytes, allocator.live_blocks[3]) == (210 * MIB, 100 * MIB)


def test_oversize_blocks_are_given_back_before_everything_is() -> None:
    limited = parse("max_split_size_mb:64")
    allocator = filled([100 * MIB, 80 * MIB, 40 * MIB], limited, capacity_bytes=220 * MIB)
    for key in range(3):
        allocator.release(key)
    allocator.allocate(3, 150 * MIB)
    # The two oversize blocks went, the cached one of forty stays, and it was no retry.
    assert (allocator.num_retries, allocator.reserved_bytes) == (0, 190 * MIB)
    assert allocator.free_blocks == (40 * MIB,)


@pytest.mark.parametrize(
    ("asked", "block"),
    [(1200 * KIB, 1280 * KIB), (1536 * KIB, 1536 * KIB), (9 * MIB, 10 * MIB), (600, 1024)],
)
def test_rounding_to_parts_of_a_power_of_two(asked: int, block: int) -> None:
    # Four steps between two powers of two: 1200 KiB goes to 1280, 9 MiB to 10; 600 bytes are too
    # few for steps of 512.
    assert CachingAllocator(parse("roundup_power2_divisions:4")).rounded(asked) == block


def test_each_interval_of_sizes_has_its_own_steps() -> None:
    allocator = CachingAllocator(parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"))
    assert allocator.rounded(100 * MIB + 1) == 100 * MIB + 512
    assert allocator.rounded(520 * MIB) == 768 * MIB
    assert allocator.rounded(1030 * MIB) == 1280 * MIB
    assert allocator.rounded(5000 * MIB) == 5120 * MIB


@pytest.mark.parametrize(
    ("text", "reserved"),
    [
        ("garbage_collection_threshold:0.5,per_process_memory_fraction:0.8", 260 * MIB),
        ("garbage_collection_threshold:0.5", 300 * MIB),
    ],
)
def test_the_oldest_segments_are_collected_beyond_a_part_of_what_is_allowed(
    text: str, reserved: int
) -> None:
    allocator = filled([100 * MIB, 40 * MIB], parse(text), device_bytes=400 * MIB)
    allocator.release(1)
    allocator.allocate(2, 50 * MIB)
    allocator.release(0)
    # 190 MiB are held and 320 allowed, of which half is the threshold: the block of forty, free for
    # longer, makes up for what is too much. Without a fraction nothing is collected.
    allocator.allocate(3, 110 * MIB)
    assert allocator.reserved_bytes == reserved


def test_a_part_of_the_device_is_all_that_is_allowed() -> None:
    settings = parse("per_process_memory_fraction:0.5")
    with pytest.raises(OutOfDeviceMemory):
        filled([30 * MIB, 30 * MIB], settings, device_bytes=100 * MIB)


def test_a_larger_page_changes_segments_and_pages() -> None:
    settings = parse("large_segment_size_mb:40")
    assert filled([3 * MIB], settings).reserved_bytes == 40 * MIB
    both = parse("large_segment_size_mb:12,expandable_segments:True")
    assert filled([11 * MIB, 11 * MIB], both).reserved_bytes == 24 * MIB


def test_a_replay_tells_peaks_and_where_it_ran_out() -> None:
    keys = [0, 1, 0, 2, 1, 2]
    sizes = [30 * MIB, 10 * MIB, 0, 20 * MIB, 0, 0]
    whole = replay(keys, sizes)
    assert (whole.allocated_bytes, whole.reserved_bytes) == (40 * MIB, 40 * MIB)
    assert (whole.num_retries, whole.refused_bytes) == (0, None)
    short = replay(keys, sizes, capacity_bytes=32 * MIB)
    assert (short.refused_bytes, short.num_retries) == (10 * MIB, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "expandable_segments:True",
        "max_split_size_mb:64",
        "roundup_power2_divisions:8",
        "large_segment_size_mb:12,expandable_segments:True",
        "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9",
    ],
)
@pytest.mark.parametrize("has_limit", [False, True])
def test_the_books_balance_whatever_is_asked(text: str, has_limit: bool) -> None:
    """Random requests: bytes are neither lost nor handed out twice, and all can be given back."""
    chance = random.Random(text)
    limits = {"capacity_bytes": 400 * MIB} if has_limit else {}
    allocator = CachingAllocator(parse(text), device_bytes=2**40, **limits)
    alive: dict[int, int] = {}
    for key in range(3000):
        if alive and (chance.random() < 0.5 or len(alive) > 60):
            gone = chance.choice(list(alive))
            del alive[gone]
            allocator.release(gone)
            continue
        asked = int(2 ** chance.uniform(4, 24.5))
        try:
            allocator.allocate(key, asked)
        except OutOfDeviceMemory:
            assert has_limit
            continue
        alive[key] = asked
        blocks = allocator.live_blocks
        assert blocks.keys() == alive.keys()
        assert blocks[key] >= asked
        assert allocator.allocated_bytes == sum(blocks.values())
        assert allocator.reserved_bytes == allocator.allocated_bytes + sum(allocator.free_blocks)
        assert not has_limit or allocator.reserved_bytes <= 400 * MIB
    for key in alive:
        allocator.release(key)
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)
    assert allocator.free_blocks == ()
