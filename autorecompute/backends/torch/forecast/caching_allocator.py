"""A model of PyTorch's caching allocator for CUDA: what it reserves for the requests of a step."""

from __future__ import annotations

import bisect
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from autorecompute.errors import SetupError
from autorecompute.training_job import ALLOCATOR_VARIABLES
from autorecompute.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


MIN_BLOCK_SIZE = 512  # every request is rounded up to a multiple of it (kMinBlockSize)
SMALL_SIZE = MIB  # the largest request that the pool for small ones takes (kSmallSize)
SMALL_SEGMENT = 2 * MIB  # a segment or page of the pool for small requests (kSmallBuffer)
MIN_LARGE_REQUEST = 10 * MIB  # from here on a request has a segment of its own (kMinLargeAlloc)
LARGE_SEGMENT = 20 * MIB
"""A segment for requests below that, or a page of the pool for large ones (``large_segment_size_mb``)."""
ROUND_LARGE = 2 * MIB  # a segment for one request is rounded up to a multiple of it (kRoundLarge)
MAX_ROUNDING = 20 * MIB  # largest remainder of a block that is not split (max_non_split_rounding_mb)
ADDRESS_SPACE = 2**62  # end of the addresses of a pool that grows: further than any card's memory


def rounded_up(size: int, multiple: int) -> int:
    """Return the smallest multiple that is no less than the size."""
    return -(-size // multiple) * multiple


def segment_size(size: int) -> int:
    """Return the bytes to ask the driver for when no free block holds a rounded request (``get_allocation_size``)."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < MIN_LARGE_REQUEST else rounded_up(size, ROUND_LARGE)


@dataclasses.dataclass(eq=False, slots=True)
class Block:
    """A part of a segment.

    Attributes:
        requested: The bytes that were asked for, while it is allocated.
        is_mapped: True if memory is behind it: always, but in a segment that grows.
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
        """Return the first address behind the block."""
        return self.address + self.size

    def cut(self, size: int) -> Block:
        """Return a block of the bytes at its front; this one is what is left."""
        front = Block(self.address, size, is_mapped=self.is_mapped, before=self.before, after=self)
        if front.before is not None:
            front.before.after = front
        self.before, self.address, self.size = front, self.address + size, self.size - size
        return front


def _by_size(block: Block) -> tuple[int, int]:
    return block.size, block.address


class Pool:
    """Free blocks for requests of one kind, in segments that the driver gives one by one.

    Args:
        address_for: Returns the address of a segment of so many bytes.
        is_small: True if it is for requests up to ``SMALL_SIZE``.
        max_split_size: Blocks of these bytes or more are not split; ``None`` to split all.

    Attributes:
        reserved: Bytes that it has from the driver.
        free_blocks: The free blocks, the smallest first; of one size the lowest address.
    """

    def __init__(self, address_for: Callable[[int], int], *, is_small: bool, max_split_size: int | None = None) -> None:
        self.reserved = 0
        self.free_blocks: list[Block] = []
        self._address_for, self._is_small, self._max_split_size = address_for, is_small, max_split_size

    def find(self, size: int) -> Block | None:
        """Return the smallest free block that holds a rounded request, taken out of the pool (``get_free_block``)."""
        place = bisect.bisect_left(self.free_blocks, (size, 0), key=_by_size)
        if place == len(self.free_blocks):
            return None
        place = self._preferred(place)
        return self.free_blocks.pop(place) if self._may_hold(self.free_blocks[place], size) else None

    def split(self, block: Block, size: int) -> Block:
        """Return the part of a block for a rounded request; what is worth a block is free (``should_split``)."""
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

    def grow(self, size: int) -> Block:
        """Return a free block for a rounded request from new memory, not in the pool (``alloc_block``)."""
        block = Block(self._address_for(segment_size(size)), segment_size(size))
        self.reserved += block.size
        return block

    def _preferred(self, place: int) -> int:
        return place

    def _may_hold(self, block: Block, size: int) -> bool:
        """Large blocks that are not split are for requests of about their size (``get_free_block``)."""
        if self._max_split_size is None:
            return True
        if size < self._max_split_size:
            return block.size < self._max_split_size
        return block.size < size + MAX_ROUNDING

    def _is_worth_splitting(self, block: Block, size: int) -> bool:
        if self._is_small:
            return block.size - size >= MIN_BLOCK_SIZE
        is_splittable = self._max_split_size is None or size < self._max_split_size
        return is_splittable and block.size - size > SMALL_SIZE

    def _put(self, block: Block) -> None:
        bisect.insort(self.free_blocks, block, key=_by_size)

    def _take(self, block: Block) -> None:
        place = bisect.bisect_left(self.free_blocks, _by_size(block), key=_by_size)
        assert self.free_blocks[place] is block, "a free block is among those of its pool"
        del self.free_blocks[place]

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


class GrowingSegment(Pool):
    """A pool of one range of addresses, behind which memory is put page by page: ``expandable_segments:True``.

    PyTorch's range ends at 9/8 of the card's memory and is followed by another one; this one does not end.
    """

    def __init__(self, *, is_small: bool) -> None:
        super().__init__(lambda _size: 0, is_small=is_small)
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

    def _take(self, block: Block) -> None:
        if block.is_mapped:
            super()._take(block)
        else:
            self._gaps.remove(block)

    def _lowest_room(self, size: int) -> Block:
        """Return the first of free blocks in a row that hold so much, one of them unmapped."""
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
        free = self.free_blocks
        while place + 1 < len(free) and _room(free[place + 1]) < _room(free[place]):
            place += 1
        return place

    def _is_worth_splitting(self, block: Block, size: int) -> bool:
        return block.size - size >= MIN_BLOCK_SIZE


def _room(block: Block) -> int:
    return block.size + (block.after.size if block.after is not None and not block.after.is_mapped else 0)


EXPANDABLE, MAX_SPLIT, NATIVE = "expandable_segments", "max_split_size_mb", "native"
WITHOUT_EFFECT = frozenset(
    {"garbage_collection_threshold", "pinned_use_cuda_host_register", "pinned_num_register_threads"}
)
"""Options about memory that is given back near a limit, or about the host's: they change nothing that is reserved."""


def settings_in(environment: Mapping[str, str]) -> dict[str, Any]:
    """Parse ``PYTORCH_ALLOC_CONF``, once ``PYTORCH_CUDA_ALLOC_CONF``: what :class:`CachingAllocator` takes by name.

    Raises:
        SetupError: it sets what is not modelled, or PyTorch would refuse it.
    """
    name = next((name for name in ALLOCATOR_VARIABLES if environment.get(name)), ALLOCATOR_VARIABLES[0])
    pairs = (part.partition(":") for part in environment.get(name, "").split(",") if part.strip())
    options = {option.strip(): value.strip() for option, _, value in pairs}
    if options.get("backend", NATIVE) == NATIVE:
        options.pop("backend", None)
    unknown = sorted(options.keys() - {EXPANDABLE, MAX_SPLIT, *WITHOUT_EFFECT})
    is_expandable, split_mb = options.get(EXPANDABLE, "").lower() == "true", options.get(MAX_SPLIT)
    fault = ""
    if unknown or not (split_mb is None or split_mb.isdecimal()):
        fault = f"{unknown[0] if unknown else f'{MAX_SPLIT}:{split_mb}'} is not known"
    elif split_mb is not None and int(split_mb) * MIB <= LARGE_SEGMENT:
        fault = f"{MAX_SPLIT} has to be more than 20"
    elif split_mb is not None and is_expandable:
        fault = f"{MAX_SPLIT} has no known effect with {EXPANDABLE}:True"
    if fault:
        raise SetupError(
            f"What a card's allocator would reserve cannot be told with {name}={environment[name]}: {fault}. Unset "
            "it, or leave out --card."
        )
    return {EXPANDABLE: is_expandable, "max_split_size": int(split_mb) * MIB if split_mb else None}


class AllocatorStats(NamedTuple):
    """Figures of ``torch.cuda.memory_stats``, in bytes.

    Attributes:
        allocated: Whole blocks that tensors have (``allocated_bytes.all``).
        requested: Bytes that they asked for (``requested_bytes.all``).
        reserved: Bytes that the allocator has from the driver (``reserved_bytes.all``).
    """

    allocated: int = 0
    requested: int = 0
    reserved: int = 0


ADDRESS_RANGE = 32 * MIB  # granularity of a driver's addresses


class CachingAllocator:
    """Answers requests as PyTorch's allocator does on a card with room for all of them.

    Attributes:
        pools: The pool for small requests, and the one for large.
        blocks: The blocks that tensors have, by the numbers of their storages.
        peak: The most of each figure so far, each at its own time.
    """

    def __init__(self, *, expandable_segments: bool = False, max_split_size: int | None = None) -> None:
        self.pools: tuple[Pool, ...] = tuple(
            GrowingSegment(is_small=is_small)
            if expandable_segments
            else Pool(self._address_for, is_small=is_small, max_split_size=max_split_size)
            for is_small in (True, False)
        )
        self.blocks: dict[int, Block] = {}
        self.peak = AllocatorStats()
        self._allocated = self._requested = 0
        self._next_range = ADDRESS_SPACE
        self._rests: list[tuple[int, int]] = []  # size and address

    @property
    def now(self) -> AllocatorStats:
        """Return the figures as they are."""
        reserved = sum(pool.reserved for pool in self.pools)
        return AllocatorStats(self._allocated, self._requested, reserved)

    def answer(self, requests: Iterable[tuple[int, int]]) -> None:
        """Allocate and free in order: for each request the number of a storage, and its bytes, negative to free it."""
        for storage, size in requests:
            if size < 0:
                self.free(storage)
            else:
                self.allocate(storage, size)

    def allocate(self, storage: int, size: int) -> None:
        """Find a block for a storage (``malloc``). One without a byte has no block."""
        assert storage not in self.blocks, "a storage is allocated once"
        if not size:
            return
        rounded = rounded_up(size, MIN_BLOCK_SIZE)
        pool = self._pool_for(rounded)
        block = pool.split(pool.find(rounded) or pool.grow(rounded), rounded)
        block.is_allocated, block.requested = True, size
        self.blocks[storage] = block
        self._count(block, 1)

    def free(self, storage: int) -> None:
        """Give a storage's block back to its pool (``free``)."""
        block = self.blocks.pop(storage, None)
        if block is not None:
            self._count(block, -1)
            self._pool_for(block.size).free(block)

    def _pool_for(self, size: int) -> Pool:
        """Return the pool of a rounded request, and of the block that it got (``get_pool``)."""
        return self.pools[size > SMALL_SIZE]

    def _count(self, block: Block, sign: int) -> None:
        self._allocated += sign * block.size
        self._requested += sign * block.requested
        self.peak = AllocatorStats(*map(max, self.now, self.peak))

    def _address_for(self, size: int) -> int:
        """Return the address of a segment, which decides about free blocks of one size: the lowest is taken.

        The driver takes ranges of whole 32 MiB from above, and fills up what is left of an earlier range before. So it
        was seen with CUDA 13.0 on an H100. What is given back is not given again.
        """
        rest = min((rest for rest in self._rests if rest[0] >= size), default=None)
        if rest is not None:
            self._rests.remove(rest)
            room, address = rest
        else:
            room = rounded_up(size, ADDRESS_RANGE)
            address = self._next_range = self._next_range - room
        if room > size:
            self._rests.append((room - size, address + size))
        return address
