"""A model of PyTorch's caching allocator for CUDA: what it reserves for the requests of a step."""

from __future__ import annotations

import abc
import bisect
import dataclasses
from typing import TYPE_CHECKING, Self

from autorecompute.errors import SetupError
from autorecompute.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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
"""Largest remainder of a block that is not split (``max_non_split_rounding_mb``)."""

ADDRESS_SPACE = 2**62
"""End of the addresses of a pool that grows: further than any card's memory."""


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
        """Return the free blocks, the smallest first; of one size the lowest address."""
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


ADDRESS_RANGE = 32 * MIB
"""Granularity of a driver's addresses."""


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


VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE, MAX_SPLIT, NATIVE = "expandable_segments", "max_split_size_mb", "native"
WITHOUT_EFFECT = frozenset(
    {"garbage_collection_threshold", "pinned_use_cuda_host_register", "pinned_num_register_threads"}
)
"""Options about memory that is given back near a limit, or about the host's: they change nothing that is reserved."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocatorSettings:
    """Settings of ``PYTORCH_ALLOC_CONF`` that decide about memory; it was called ``PYTORCH_CUDA_ALLOC_CONF``.

    Attributes:
        expandable_segments: Whether each pool is one segment that grows.
        max_split_size: Blocks of these bytes or more are not split; ``None`` to split all.

    Raises:
        ValueError: PyTorch refuses the size, or the model does not know the two together.
    """

    expandable_segments: bool = False
    max_split_size: int | None = None

    def __post_init__(self) -> None:
        if self.max_split_size is None:
            return
        if self.max_split_size <= LARGE_SEGMENT:
            raise ValueError("max_split_size_mb has to be more than 20")
        if self.expandable_segments:
            raise ValueError("max_split_size_mb has no known effect with expandable_segments:True")

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Parse the settings in these variables.

        Raises:
            SetupError: they set what is not modelled, or PyTorch would refuse them.
        """
        name = next((name for name in VARIABLES if environment.get(name)), VARIABLES[0])
        pairs = (part.partition(":") for part in environment.get(name, "").split(",") if part.strip())
        options = {option.strip(): value.strip() for option, _, value in pairs}
        if options.get("backend", NATIVE) == NATIVE:
            options.pop("backend", None)
        unknown = sorted(options.keys() - {EXPANDABLE, MAX_SPLIT, *WITHOUT_EFFECT})
        split_mb = options.get(MAX_SPLIT, "")
        try:
            if unknown or not (split_mb.isdecimal() or MAX_SPLIT not in options):
                raise ValueError(f"{unknown[0] if unknown else f'{MAX_SPLIT}:{split_mb}'} is not known")  # noqa: TRY301
            is_expandable = options.get(EXPANDABLE, "").lower() == "true"
            return cls(expandable_segments=is_expandable, max_split_size=int(split_mb) * MIB if split_mb else None)
        except ValueError as error:
            raise SetupError(
                f"What a card's allocator would reserve cannot be told with {name}={environment[name]}: {error}. Unset "
                "it, or leave out --card."
            ) from error


@dataclasses.dataclass(frozen=True)
class Request:
    """A call to the allocator.

    Attributes:
        storage: The number of a tensor's storage.
        size: The bytes that it takes. Negative where it is freed.
    """

    storage: int
    size: int


@dataclasses.dataclass(frozen=True)
class AllocatorStats:
    """Figures of ``torch.cuda.memory_stats``, in bytes.

    Attributes:
        allocated: What tensors have, in whole blocks (``allocated_bytes.all``).
        requested: What they asked for (``requested_bytes.all``).
        reserved: What the allocator has from the driver (``reserved_bytes.all``).
        retries: How often it gave free memory back and asked again (``num_alloc_retries``).
    """

    allocated: int = 0
    requested: int = 0
    reserved: int = 0
    retries: int = 0


class OutOfCardMemoryError(Exception):
    """A request goes beyond the limit even after all free memory was given back."""


class CachingAllocator:
    """Answers requests as PyTorch's allocator does.

    Args:
        settings: What of ``PYTORCH_ALLOC_CONF`` decides about memory.
        limit: The most bytes that may be reserved, as ``torch.cuda.set_per_process_memory_fraction`` sets it; ``None``
            for no limit. As in PyTorch, pages of a segment that grows may go beyond it by less than one page.

    Attributes:
        peak: The most of each figure so far, each at its own time.
    """

    def __init__(self, settings: AllocatorSettings | None = None, limit: int | None = None) -> None:
        settings = settings or AllocatorSettings()
        driver = Driver()
        self._small = _pool(settings, driver, is_small=True)
        self._large = _pool(settings, driver, is_small=False)
        self._limit = limit
        self._blocks: dict[int, Block] = {}
        self._allocated = self._requested = self._retries = 0
        self.peak = AllocatorStats()

    @property
    def pools(self) -> tuple[Pool, Pool]:
        """Return the pool for small requests, and the one for large."""
        return self._small, self._large

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Return the blocks that tensors have."""
        return tuple(self._blocks.values())

    @property
    def now(self) -> AllocatorStats:
        """Return the figures as they are."""
        reserved = self._small.reserved + self._large.reserved
        return AllocatorStats(self._allocated, self._requested, reserved, self._retries)

    def answer(self, requests: Iterable[Request]) -> None:
        """Allocates and frees, in order.

        Raises:
            OutOfCardMemoryError: A request goes beyond the limit.
        """
        for request in requests:
            if request.size < 0:
                self.free(request.storage)
            else:
                self.allocate(request.storage, request.size)

    def allocate(self, storage: int, size: int) -> None:
        """Find a block for a storage (``malloc``). One without a byte has no block.

        Args:
            storage: Its number, which no storage has that has a block.
            size: Its bytes.

        Raises:
            OutOfCardMemoryError: It goes beyond the limit.
        """
        assert storage not in self._blocks, "a storage is allocated once"
        if not size:
            return
        rounded = rounded_up(size, MIN_BLOCK_SIZE)
        pool = self._pool_for(rounded)
        block = pool.split(pool.find(rounded) or self._new(pool, rounded), rounded)
        block.is_allocated, block.requested = True, size
        self._blocks[storage] = block
        self._count(block, 1)

    def free(self, storage: int) -> None:
        """Give a storage's block back to its pool (``free``)."""
        block = self._blocks.pop(storage, None)
        if block is not None:
            self._count(block, -1)
            self._pool_for(block.size).free(block)

    def empty_cache(self) -> None:
        """Give the driver all memory back that no tensor has a part of (``release_cached_blocks``)."""
        self._small.release()
        self._large.release()

    def limit_to(self, limit: int) -> None:
        """Let no more than these bytes be reserved from now on."""
        self._limit = limit

    def reset_peak(self) -> None:
        """Forget all peaks before now."""
        self.peak = self.now

    def _pool_for(self, size: int) -> Pool:
        """Return the pool of a rounded request, and of the block that it got (``get_pool``)."""
        return self._small if size <= SMALL_SIZE else self._large

    def _new(self, pool: Pool, size: int) -> Block:
        """Return a block from new memory, if need be after free memory was given back (``malloc``)."""
        if not self._has_room(size) and not (pool.release_enough(size) and self._has_room(size)):
            self.empty_cache()
            self._retries += 1
            if not self._has_room(size):
                raise OutOfCardMemoryError(f"{size} bytes were requested with {self.now.reserved} reserved")
        return pool.grow(size)

    def _has_room(self, size: int) -> bool:
        return self._limit is None or self.now.reserved + segment_size(size) <= self._limit

    def _count(self, block: Block, sign: int) -> None:
        self._allocated += sign * block.size
        self._requested += sign * block.requested
        now, peak = self.now, self.peak
        self.peak = AllocatorStats(
            max(now.allocated, peak.allocated),
            max(now.requested, peak.requested),
            max(now.reserved, peak.reserved),
            now.retries,
        )


def _pool(settings: AllocatorSettings, driver: Driver, *, is_small: bool) -> Pool:
    if settings.expandable_segments:
        return GrowingSegment(is_small=is_small)
    return FixedSegments(driver, is_small=is_small, max_split_size=settings.max_split_size)
