"""The free memory of one pool of the caching allocator, and where its segment may grow."""

from __future__ import annotations

from bisect import bisect_left, insort

_ADDRESS_BITS = 56
_ADDRESS_MASK = (1 << _ADDRESS_BITS) - 1
RANGE_BYTES = 1 << 50
"""Addresses that an expandable segment may grow over: more than any device has."""


class Pool:
    """Free blocks, ordered by size and then by address.

    Args:
        is_small: Whether it is the pool of small requests.
        page_bytes: What an expandable segment grows by.
        tracks_age: Whether it is noted how long blocks have been free.
    """

    __slots__ = (
        "_born",
        "_ends",
        "_keys",
        "_tracks_age",
        "gaps",
        "is_small",
        "num_searches",
        "page_bytes",
        "sizes",
    )

    def __init__(self, *, is_small: bool, page_bytes: int, tracks_age: bool = False) -> None:
        self.is_small = is_small
        self.page_bytes = page_bytes
        self.sizes: dict[int, int] = {}
        """Bytes of every free block, by its address."""
        self.gaps: list[tuple[int, int]] = []
        """Start and end of the unmapped parts of the expandable segment, ascending."""
        self.num_searches = 0
        self._keys: list[int] = []
        """Size and address of every free block as one number, ascending."""
        self._ends: dict[int, int] = {}
        """Address of every free block, by the address behind it."""
        self._tracks_age = tracks_age
        self._born: dict[int, int] = {}
        """Searches that the pool had seen when a block came in."""

    def reach_over(self, number: int) -> None:
        """Gives the pool addresses to grow over, apart from those of another number."""
        # Pages begin where their size divides the address.
        start = -(-2 * number * RANGE_BYTES // self.page_bytes) * self.page_bytes
        self.gaps = [(start, start + RANGE_BYTES // self.page_bytes * self.page_bytes)]

    def put(self, address: int, size: int) -> None:
        """Adds a block as it is."""
        insort(self._keys, size << _ADDRESS_BITS | address)
        self.sizes[address] = size
        self._ends[address + size] = address
        if self._tracks_age:
            self._born[address] = self.num_searches

    def take(self, address: int) -> int:
        """Removes the block at an address; returns its bytes."""
        size = self.sizes.pop(address)
        del self._ends[address + size]
        del self._keys[bisect_left(self._keys, size << _ADDRESS_BITS | address)]
        return size

    def join(self, address: int, size: int) -> int:
        """Adds a block as one with the free ones beside it; returns where that begins."""
        before = self._ends.get(address)
        if before is not None:
            size += self.take(before)
            address = before
        if address + size in self.sizes:
            size += self.take(address + size)
        self.put(address, size)
        return address

    def index_of(self, size: int) -> int | None:
        """The number of the smallest block of at least `size` bytes, in the pool's order."""
        index = bisect_left(self._keys, size << _ADDRESS_BITS)
        return index if index < len(self._keys) else None

    def at(self, index: int) -> tuple[int, int]:
        """Address and bytes of a block by its number; −1 is the largest."""
        key = self._keys[index]
        return key & _ADDRESS_MASK, key >> _ADDRESS_BITS

    def pop(self, index: int) -> tuple[int, int]:
        """Removes a block by its number; returns its address and bytes."""
        key = self._keys.pop(index)
        address, size = key & _ADDRESS_MASK, key >> _ADDRESS_BITS
        del self.sizes[address]
        del self._ends[address + size]
        return address, size

    def ages(self) -> dict[int, int]:
        """Searches since each block came in, by its address."""
        return {address: self.num_searches - self._born[address] for address in self.sizes}

    def least_able_to_grow(self, index: int) -> int:
        """The number of the block to take where one of a number would do.

        A block before unmapped memory counts as large as it can become, so that it is taken last.
        """
        ends = dict(self.gaps)

        def able_bytes(number: int) -> int:
            address, size = self.at(number)
            end = address + size
            return size + (ends[end] - end if end in ends else 0)

        while index + 1 < len(self._keys) and able_bytes(index + 1) < able_bytes(index):
            index += 1
        return index

    def room(self, size: int) -> int:
        """The lowest address from which free and unmapped memory run on for `size` bytes."""
        ends = dict(self.gaps)
        for start in ends:
            address = end = self._ends.get(start, start)
            while end - address < size and (end in self.sizes or end in ends):
                end = end + self.sizes[end] if end in self.sizes else ends[end]
            if end - address >= size:
                return address
        raise ValueError(f"no device has {size} bytes")

    def unmapped_after(self, address: int) -> int:
        """Bytes that may be mapped from an address on."""
        return next(end for start, end in self.gaps if start == address) - address

    def map(self, address: int, size: int) -> int:
        """Makes whole pages at the start of an unmapped part free; returns where that begins."""
        index = next(i for i, (start, _) in enumerate(self.gaps) if start == address)
        _, end = self.gaps[index]
        self.gaps[index : index + 1] = [(address + size, end)] if address + size < end else []
        return self.join(address, size)

    def unmap(self, address: int) -> int:
        """Takes the whole pages out of a free block; returns their bytes."""
        page, end = self.page_bytes, address + self.sizes[address]
        first, last = -(-address // page) * page, end // page * page
        if first >= last:
            return 0
        self.take(address)
        if first > address:
            self.put(address, first - address)
        if last < end:
            self.put(last, end - last)
        joined: list[tuple[int, int]] = []
        for start, stop in sorted([*self.gaps, (first, last)]):
            if joined and joined[-1][1] == start:
                start = joined.pop()[0]
            joined.append((start, stop))
        self.gaps = joined
        return last - first
