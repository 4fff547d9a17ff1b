"""A model of PyTorch's caching allocator: what a sequence of requests makes it reserve.

One stream, no graph capture. The rules are those that `c10/cuda/CUDACachingAllocator.cpp` states
and the CUDA notes of PyTorch document:

* A request is rounded up to 512 bytes, or to a part of a power of two where that is set. Up to
  1 MiB it comes from the small pool, beyond from the large one.
* The smallest free block that holds it is taken, at equal size the one at the lowest address. What
  is left of it becomes a free block of its own: from 512 bytes on in the small pool and in an
  expandable segment, from more than 1 MiB on in the large pool.
* Where there is none, memory is asked for: 2 MiB in the small pool, 20 MiB for up to 10 MiB, else
  the request rounded up to 2 MiB. An expandable segment instead maps pages of 2 or 20 MiB at its
  lowest unmapped address, so that free memory before them joins in.
* A block that is given back joins its free neighbours of the same segment.
* Where memory is refused: old blocks beyond `max_split_size` are given back first, then every
  segment (or page) that is wholly free; the second try is counted as a retry, and if it fails too,
  memory is out.

Not known are the addresses that a driver returns; here they ascend. They decide only between blocks
of equal size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.cost.memory.allocator_settings import UNCHANGED, AllocatorSettings
from autotune.cost.memory.pool import Pool

MIB = 1024**2
SMALLEST_BLOCK_BYTES = 512
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
OWN_SEGMENT_BYTES = 10 * MIB
"""Requests from this size on get a segment of their own size."""
SEGMENT_STEP_BYTES = 2 * MIB


class OutOfDeviceMemory(Exception):
    """A request that could not be met.

    Args:
        asked_bytes: What was asked of the device.
        reserved_bytes: What was reserved and could not be given back.
    """

    def __init__(self, asked_bytes: int, reserved_bytes: int) -> None:
        super().__init__(f"{asked_bytes} bytes were refused with {reserved_bytes} reserved")
        self.asked_bytes = asked_bytes
        self.reserved_bytes = reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """How a sequence of requests went."""

    allocated_bytes: int
    """Most that was handed out at once, in whole blocks."""
    reserved_bytes: int
    """Most that was held of the device at once."""
    num_retries: int
    """Times that cached memory had to be given back for a request."""
    refused_bytes: int | None = None
    """What was asked of the device where memory ran out; None where it sufficed."""


class CachingAllocator:
    """The allocator of one device, empty at first.

    Args:
        settings: How it rounds, splits and gives back.
        capacity_bytes: What the device has for it; None is no limit.
        device_bytes: The whole device, which `memory_fraction` is a part of; None for no limit.
    """

    def __init__(
        self,
        settings: AllocatorSettings = UNCHANGED,
        *,
        capacity_bytes: int | None = None,
        device_bytes: int | None = None,
    ) -> None:
        self.allocated_bytes = 0
        self.peak_allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0
        self.num_retries = 0
        self._settings = settings
        self._divisions = settings.roundup_power2_divisions
        self._rounds_to_parts = any(division > 1 for division in self._divisions)
        self._expandable = settings.expandable_segments
        self._max_split_bytes = settings.max_split_size_bytes
        self._capacity_bytes = capacity_bytes
        self._allowed_bytes: int | None = None
        if settings.memory_fraction is not None and device_bytes is not None:
            self._allowed_bytes = int(settings.memory_fraction * device_bytes)
        self._collects = (
            settings.garbage_collection_threshold > 0 and self._allowed_bytes is not None
        )
        pages = settings.large_segment_bytes
        self._small = Pool(is_small=True, page_bytes=SMALL_SEGMENT_BYTES)
        self._large = Pool(is_small=False, page_bytes=pages, tracks_age=self._collects)
        self._segments: dict[int, int] = {}
        """Bytes of every segment, by its address."""
        self._live: dict[int, tuple[int, int, Pool]] = {}
        """Address, bytes and pool of every block that is handed out, by its key."""
        self._next_address = MIB
        if self._expandable:
            self._small.reach_over(1)
            self._large.reach_over(2)

    @property
    def live_blocks(self) -> dict[int, int]:
        """The bytes of every block that is handed out, by its key."""
        return {key: size for key, (_, size, _) in self._live.items()}

    @property
    def free_blocks(self) -> tuple[int, ...]:
        """The sizes of all free blocks, by address."""
        sizes = {**self._small.sizes, **self._large.sizes}
        return tuple(sizes[address] for address in sorted(sizes))

    def rounded(self, num_bytes: int) -> int:
        """The size of the block that a request is met with, where one of any size can be had."""
        if num_bytes < SMALLEST_BLOCK_BYTES:
            return SMALLEST_BLOCK_BYTES
        if self._rounds_to_parts:
            interval = min(max(num_bytes.bit_length() - 21, 0), len(self._divisions) - 1)
            divisions = self._divisions[interval]
            if divisions > 1 and num_bytes > SMALLEST_BLOCK_BYTES * divisions:
                step = (1 << (num_bytes.bit_length() - 1)) // divisions
                return -(-num_bytes // step) * step
        return -(-num_bytes // SMALLEST_BLOCK_BYTES) * SMALLEST_BLOCK_BYTES

    def allocate(self, key: int, num_bytes: int) -> None:
        """Meets a request.

        Args:
            key: What it is given back by.
            num_bytes: What is asked for; nothing happens for nothing.

        Raises:
            OutOfDeviceMemory: The device refuses, whatever is given back.
        """
        if num_bytes <= 0:
            return
        size = self.rounded(num_bytes)
        pool = self._small if size <= SMALL_BYTES else self._large
        found = self._find(pool, size)
        address, block_bytes = found if found is not None else self._obtain(pool, size)
        rest = block_bytes - size
        if pool.is_small or self._expandable:
            splits = rest >= SMALLEST_BLOCK_BYTES
        else:
            limit = self._max_split_bytes
            splits = rest > SMALL_BYTES and (limit is None or size < limit)
        if splits:
            pool.put(address + size, rest)
            block_bytes = size
        self._live[key] = (address, block_bytes, pool)
        self.allocated_bytes += block_bytes
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes

    def release(self, key: int) -> None:
        """Gives a block back; what was never handed out is passed over."""
        block = self._live.pop(key, None)
        if block is None:
            return
        address, size, pool = block
        self.allocated_bytes -= size
        pool.join(address, size)

    def empty_cache(self) -> None:
        """Gives back what is wholly free, as `torch.cuda.empty_cache` does."""
        for pool in (self._large, self._small):
            for address in list(pool.sizes):
                if self._expandable:
                    self.reserved_bytes -= pool.unmap(address)
                elif self._is_whole(pool, address):
                    self._give_back(pool, address)

    def _find(self, pool: Pool, size: int) -> tuple[int, int] | None:
        """Address and bytes of the best free block, taken out of the pool."""
        if self._collects:
            pool.num_searches += 1
        index = pool.index_of(size)
        if index is None:
            return None
        if self._expandable:
            index = pool.least_able_to_grow(index)
        limit = self._max_split_bytes
        if limit is not None:
            _, block_bytes = pool.at(index)
            if size < limit <= block_bytes:
                return None
            rounding = self._settings.max_non_split_rounding_bytes
            if size >= limit and block_bytes >= size + rounding:
                return None
        return pool.pop(index)

    def _obtain(self, pool: Pool, size: int) -> tuple[int, int]:
        """A new block from the device, after giving back what must go."""
        if self._collects:
            self._collect()
        block = self._ask(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._ask(pool, size)
        if block is None:
            self.empty_cache()
            self.num_retries += 1
            block = self._ask(pool, size)
        if block is None:
            raise OutOfDeviceMemory(self._segment_bytes(pool, size), self.reserved_bytes)
        return block

    def _segment_bytes(self, pool: Pool, size: int) -> int:
        if pool.is_small:
            return SMALL_SEGMENT_BYTES
        if size < OWN_SEGMENT_BYTES:
            return self._settings.large_segment_bytes
        return -(-size // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES

    def _ask(self, pool: Pool, size: int) -> tuple[int, int] | None:
        segment_bytes = self._segment_bytes(pool, size)
        allowed = self._allowed_bytes
        if allowed is not None and self.reserved_bytes + segment_bytes > allowed:
            return None
        if self._expandable:
            return self._expand(pool, size)
        if not self._reserve(segment_bytes):
            return None
        address = self._next_address
        # Segments never touch, so that blocks of two of them never join.
        self._next_address += segment_bytes + MIB
        self._segments[address] = segment_bytes
        return address, segment_bytes

    def _reserve(self, num_bytes: int) -> bool:
        capacity = self._capacity_bytes
        if capacity is not None and self.reserved_bytes + num_bytes > capacity:
            return False
        self.reserved_bytes += num_bytes
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes
        return True

    def _is_whole(self, pool: Pool, address: int) -> bool:
        """Whether a free block is a segment of its own."""
        return self._segments.get(address) == pool.sizes[address]

    def _give_back(self, pool: Pool, address: int) -> int:
        """Returns a wholly free segment to the device."""
        size = pool.take(address)
        del self._segments[address]
        self.reserved_bytes -= size
        return size

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Gives back unsplittable blocks until they make up for a request, the largest first."""
        limit = self._max_split_bytes
        if limit is None or self._expandable:
            return False
        wanted = max(size, limit)
        index = pool.index_of(wanted)
        if index is not None:
            self._give_back(pool, pool.at(index)[0])
            return True
        released = 0
        while released < wanted and pool.sizes and pool.at(-1)[1] >= limit:
            released += self._give_back(pool, pool.at(-1)[0])
        return released >= wanted

    def _collect(self) -> None:
        """Gives back old free segments of the large pool while more is held than the threshold."""
        assert self._allowed_bytes is not None
        threshold = int(self._settings.garbage_collection_threshold * self._allowed_bytes)
        wanted = self.reserved_bytes - threshold
        if wanted <= 0:
            return
        pool = self._large
        ages = {a: age for a, age in pool.ages().items() if self._is_whole(pool, a)}
        released = 0
        while released < wanted and ages:
            mean = sum(ages.values()) / len(ages)
            for address in [address for address, age in ages.items() if age >= mean]:
                released += self._give_back(pool, address)
                del ages[address]

    def _expand(self, pool: Pool, size: int) -> tuple[int, int] | None:
        """Maps pages where they make a block of `size` with the free memory beside them."""
        address = pool.room(size)
        block_bytes = pool.sizes.get(address, 0)
        while block_bytes < size:
            end = address + block_bytes
            missing = min(size - block_bytes, pool.unmapped_after(end))
            mapped = -(-missing // pool.page_bytes) * pool.page_bytes
            if not self._reserve(mapped):
                return None
            address = pool.map(end, mapped)
            block_bytes = pool.sizes[address]
        return address, pool.take(address)


def replay(
    keys: Sequence[int],
    num_bytes: Sequence[int],
    settings: AllocatorSettings = UNCHANGED,
    *,
    capacity_bytes: int | None = None,
    device_bytes: int | None = None,
) -> Replayed:
    """Runs a sequence of requests through an empty allocator.

    Args:
        keys: Which block each event is about.
        num_bytes: What it asks for, or 0 where the block is given back.
        settings: How the allocator rounds, splits and gives back.
        capacity_bytes: What the device has for it; None is no limit.
        device_bytes: The whole device, which `memory_fraction` is a part of.
    """
    allocator = CachingAllocator(settings, capacity_bytes=capacity_bytes, device_bytes=device_bytes)
    refused: int | None = None
    try:
        for key, asked in zip(keys, num_bytes, strict=True):
            if asked:
                allocator.allocate(key, asked)
            else:
                allocator.release(key)
    except OutOfDeviceMemory as error:
        refused = error.asked_bytes
    return Replayed(
        allocated_bytes=allocator.peak_allocated_bytes,
        reserved_bytes=allocator.peak_reserved_bytes,
        num_retries=allocator.num_retries,
        refused_bytes=refused,
    )
