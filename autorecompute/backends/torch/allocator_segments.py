"""How a pool of the CUDA caching allocator gets its memory: in segments of a fixed size, or in one that grows.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp``; each function names the one that it follows there.
"""

from __future__ import annotations

import bisect

from autorecompute.backends.torch.allocator_pools import (
    ADDRESS_SPACE,
    LARGE_SEGMENT,
    MAX_ROUNDING,
    SMALL_SEGMENT,
    SMALL_SIZE,
    Block,
    Pool,
    rounded_up,
    segment_size,
)
from autorecompute.units import MIB

ADDRESS_RANGE = 32 * MIB
"""What a driver takes of its addresses at once."""


class Driver:
    """Gives segments their addresses, which decide about free blocks of one size: the lowest is taken.

    It takes ranges of whole 32 MiB from above, and fills up what is left of an earlier range before. So it was seen
    with CUDA 13.0 on an H100. What is given back is not given again.
    """

    def __init__(self) -> None:
        self._begin = ADDRESS_SPACE
        self._rests: list[tuple[int, int]] = []  # size and address

    def give(self, size: int) -> int:
        """Return the address of a segment of so many bytes."""
        rest = min((rest for rest in self._rests if rest[0] >= size), default=None)
        if rest is not None:
            self._rests.remove(rest)
            room, address = rest
        else:
            room = rounded_up(size, ADDRESS_RANGE)
            self._begin -= room
            address = self._begin
        if room > size:
            self._rests.append((room - size, address + size))
        return address


class FixedSegments(Pool):
    """A pool of segments that the driver gave one by one.

    Args:
        driver: Where they come from.
        is_small: Whether it is for requests up to ``SMALL_SIZE``.
        max_split_size: Blocks of these bytes or more are not split; ``None`` to split all.
    """

    def __init__(self, driver: Driver, *, is_small: bool, max_split_size: int | None = None) -> None:
        super().__init__(is_small=is_small)
        self._driver, self._max_split_size = driver, max_split_size

    def grow(self, size: int) -> Block:
        """Return one more segment (``alloc_block``)."""
        block = Block(self._driver.give(segment_size(size)), segment_size(size))
        self.reserved += block.size
        return block

    def release(self) -> None:
        """Give all free segments back (``release_blocks``)."""
        for block in [block for block in self._free if not block.is_split]:
            self._give_back(block)

    def release_enough(self, size: int) -> bool:
        """Give free segments back that are not split for their size, until they hold a request.

        The smallest that holds it alone; else the largest ones (``release_available_cached_blocks``).

        Returns:
            Whether so much was given back.
        """
        if self._max_split_size is None:
            return False
        wanted = max(size, self._max_split_size)
        single = next((block for block in self._free if block.size >= wanted), None)
        if single is not None:
            self._give_back(single)
            return True
        released = 0
        while released < wanted and self._free and self._free[-1].size >= self._max_split_size:
            released += self._free[-1].size
            self._give_back(self._free[-1])
        return released >= wanted

    def _give_back(self, block: Block) -> None:
        assert not block.is_split, "only whole segments go back to the driver"
        self._take(block)
        self.reserved -= block.size

    def _may_hold(self, block: Block, size: int) -> bool:
        """Large blocks that are not split are for requests of about their size (``get_free_block``)."""
        if self._max_split_size is None:
            return True
        if size < self._max_split_size:
            return block.size < self._max_split_size
        return block.size < size + MAX_ROUNDING

    def _is_worth_splitting(self, block: Block, size: int) -> bool:
        if self.is_small:
            return super()._is_worth_splitting(block, size)
        is_splittable = self._max_split_size is None or size < self._max_split_size
        return is_splittable and block.size - size > SMALL_SIZE


class GrowingSegment(Pool):
    """A pool of one range of addresses, behind which memory is put page by page: ``expandable_segments:True``.

    PyTorch's range ends at 9/8 of the card's memory and is followed by another one; this one does not end.

    Args:
        is_small: Whether it is for requests up to ``SMALL_SIZE``.
    """

    def __init__(self, *, is_small: bool) -> None:
        super().__init__(is_small=is_small)
        self._page = SMALL_SEGMENT if is_small else LARGE_SEGMENT
        self._gaps = [Block(0, ADDRESS_SPACE, is_mapped=False)]  # by address

    def grow(self, size: int) -> Block:
        """Put pages behind the lowest addresses that have room (``try_allocate_expandable_block``)."""
        block = self._lowest_room(size)
        if block.is_mapped:
            self._take(block)
        else:
            block = self._map(block, min(block.size, size))
        while block.size < size:
            gap = block.after
            assert gap is not None
            assert not gap.is_mapped, "what is free ends where memory ends"
            self._put(block)
            block = self._map(gap, min(gap.size, size - block.size))
        return block

    def release(self) -> None:
        """Give all pages back that lie in free blocks as a whole (``unmap_block``)."""
        for block in self.free_blocks:
            first, end = rounded_up(block.address, self._page), block.end // self._page * self._page
            if first < end:
                self._take(block)
                self._unmap(block, first, end)

    def _unmap(self, block: Block, first: int, end: int) -> None:
        if first > block.address:
            self._put(block.cut(first - block.address))
        if end < block.end:
            pages = block.cut(end - first)
            self._put(block)
            block = pages
        self.reserved -= block.size
        block.is_mapped = False
        self._join(block)
        bisect.insort(self._gaps, block, key=_by_address)

    def _take(self, block: Block) -> None:
        if block.is_mapped:
            super()._take(block)
        else:
            self._gaps.remove(block)

    def _lowest_room(self, size: int) -> Block:
        """Return the first of blocks without a tensor that follow each other and hold so much, one of them unmapped."""
        for gap in self._gaps:
            first = gap.before if gap.before is not None and not gap.before.is_allocated else gap
            room, last = first.size, first.after
            while room < size and last is not None and not last.is_allocated:
                room, last = room + last.size, last.after
            if room >= size:
                return first
        raise AssertionError("the range of addresses does not end")

    def _map(self, gap: Block, size: int) -> Block:
        """Put memory behind the front of a gap, in whole pages, and join it with what is free (``map_block``)."""
        pages = rounded_up(size, self._page)
        if pages < gap.size:
            block = gap.cut(pages)
        else:
            self._take(gap)
            block = gap
        block.is_mapped = True
        self.reserved += pages
        self._join(block)
        return block

    def _preferred(self, place: int) -> int:
        """Count a block as large as it could grow to, so that one that cannot grow goes first (``get_free_block``)."""
        while place + 1 < len(self._free) and _room(self._free[place + 1]) < _room(self._free[place]):
            place += 1
        return place


def _room(block: Block) -> int:
    """Return the bytes to which a free block could grow."""
    return block.size + (block.after.size if block.after is not None and not block.after.is_mapped else 0)


def _by_address(block: Block) -> int:
    return block.address
