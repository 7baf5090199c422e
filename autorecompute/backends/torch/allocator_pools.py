"""The two pools of PyTorch's CUDA caching allocator: free blocks, and memory that comes from the driver and goes back.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` with the sizes of ``c10/core/AllocatorConfig.h``, as of
PyTorch 2.7 to 2.13. Each function names the one that it follows there.
"""

from __future__ import annotations

import abc
import bisect
import dataclasses

from autorecompute.units import MIB

MIN_BLOCK_SIZE = 512
"""Every request is rounded up to a multiple of it (``kMinBlockSize``)."""
SMALL_SIZE = MIB
"""The largest request that the pool for small ones takes (``kSmallSize``)."""
SMALL_SEGMENT = 2 * MIB
"""A segment or page of the pool for small requests (``kSmallBuffer``)."""
MIN_LARGE_REQUEST = 10 * MIB
"""From here on a request has a segment of its own (``kMinLargeAlloc``)."""
LARGE_SEGMENT = 20 * MIB
"""A segment for requests below that, or a page of the pool for large ones (``large_segment_size_mb``)."""
ROUND_LARGE = 2 * MIB
"""A segment for one request is rounded up to a multiple of it (``kRoundLarge``)."""
MAX_ROUNDING = 20 * MIB
"""How much larger than its request a block may be that is not split (``max_non_split_rounding_mb``)."""

ADDRESS_SPACE = 2**62
"""Where the addresses of a pool that grows end: further than any card's memory."""


def rounded_up(size: int, multiple: int) -> int:
    """Return the smallest multiple that is no less than the size."""
    return -(-size // multiple) * multiple


def segment_size(size: int) -> int:
    """Return what the driver is asked for when no free block holds a rounded request (``get_allocation_size``)."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < MIN_LARGE_REQUEST else rounded_up(size, ROUND_LARGE)


@dataclasses.dataclass(eq=False, slots=True)
class Block:
    """A part of a segment.

    Attributes:
        address: Where it begins, in the address space of its pool.
        size: Its bytes.
        requested: The bytes that were asked for, while it is allocated.
        is_allocated: Whether a tensor has it.
        is_mapped: Whether memory is behind it. Always, but in a segment that grows.
        before: The block in front of it in its segment.
        after: The block behind it.
    """

    address: int
    size: int
    requested: int = 0
    is_allocated: bool = False
    is_mapped: bool = True
    before: Block | None = None
    after: Block | None = None

    @property
    def end(self) -> int:
        """Return the first address behind it."""
        return self.address + self.size

    @property
    def is_split(self) -> bool:
        """Tell whether it is a part of its segment only."""
        return self.before is not None or self.after is not None

    def cut(self, size: int) -> Block:
        """Take these bytes off its front, as a block of their own; this one is what is left."""
        front = Block(self.address, size, is_mapped=self.is_mapped, before=self.before, after=self)
        if front.before is not None:
            front.before.after = front
        self.before, self.address, self.size = front, self.address + size, self.size - size
        return front


def _by_size(block: Block) -> tuple[int, int]:
    return block.size, block.address


class Pool(abc.ABC):
    """Free blocks for requests of one kind.

    Args:
        is_small: Whether it is for requests up to ``SMALL_SIZE``.

    Attributes:
        reserved: Bytes that it has from the driver.
    """

    def __init__(self, *, is_small: bool) -> None:
        self.reserved = 0
        self.is_small = is_small
        self._free: list[Block] = []  # by size and address

    @property
    def free_blocks(self) -> tuple[Block, ...]:
        """Return what could be given to a request, the smallest first; of one size the lowest address."""
        return tuple(self._free)

    def find(self, size: int) -> Block | None:
        """Return the smallest free block that holds a rounded request, taken out of the pool (``get_free_block``)."""
        place = bisect.bisect_left(self._free, (size, 0), key=_by_size)
        if place == len(self._free):
            return None
        place = self._preferred(place)
        return self._free.pop(place) if self._may_hold(self._free[place], size) else None

    def split(self, block: Block, size: int) -> Block:
        """Return the part of a block for a rounded request.

        The rest is free where it is worth a block (``should_split``).
        """
        if not self._is_worth_splitting(block, size):
            return block
        front = block.cut(size)
        self._put(block)
        return front

    def free(self, block: Block) -> None:
        """Take a block back and join it with its free neighbours (``free_block``)."""
        block.is_allocated, block.requested = False, 0
        self._join(block)
        self._put(block)

    @abc.abstractmethod
    def grow(self, size: int) -> Block:
        """Return a free block for a rounded request from new memory, not in the pool (``alloc_block``)."""

    @abc.abstractmethod
    def release(self) -> None:
        """Give all memory back that no tensor has a part of (``release_blocks``)."""

    def release_enough(self, _size: int) -> bool:
        """Give some free memory back for a rounded request.

        Returns:
            Whether as much was given back as it needs.
        """
        return False

    def _preferred(self, place: int) -> int:
        return place

    def _may_hold(self, _block: Block, _size: int) -> bool:
        return True

    def _is_worth_splitting(self, block: Block, size: int) -> bool:
        return block.size - size >= MIN_BLOCK_SIZE

    def _put(self, block: Block) -> None:
        bisect.insort(self._free, block, key=_by_size)

    def _take(self, block: Block) -> None:
        place = bisect.bisect_left(self._free, _by_size(block), key=_by_size)
        assert self._free[place] is block, "a free block is among those of its pool"
        del self._free[place]

    def _join(self, block: Block) -> None:
        """Make one block of this one and those beside it that are like it (``try_merge_blocks``)."""
        for neighbour in (block.before, block.after):
            if neighbour is None or neighbour.is_allocated or neighbour.is_mapped != block.is_mapped:
                continue
            self._take(neighbour)
            if neighbour is block.before:
                block.address, block.before = neighbour.address, neighbour.before
                if block.before is not None:
                    block.before.after = block
            else:
                block.after = neighbour.after
                if block.after is not None:
                    block.after.before = block
            block.size += neighbour.size
