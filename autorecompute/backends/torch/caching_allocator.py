"""What PyTorch's CUDA caching allocator would have allocated and reserved, without a card and without PyTorch.

Requests of one stream of work are modelled, as those of a training step are. What is not modelled: memory that is used
on several streams, memory of CUDA graphs, ``roundup_power2_divisions``, ``garbage_collection_threshold`` and
``backend:cudaMallocAsync``. The rules are those of ``c10/cuda/CUDACachingAllocator.cpp``; users find them in PyTorch's
notes on CUDA semantics under "Memory management".
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Self

from autorecompute.backends.torch.allocator_pools import LARGE_SEGMENT, MIN_BLOCK_SIZE, SMALL_SIZE, rounded_up
from autorecompute.backends.torch.allocator_pools import segment_size as segment_size_of
from autorecompute.backends.torch.allocator_segments import Driver, FixedSegments, GrowingSegment
from autorecompute.errors import SetupError
from autorecompute.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autorecompute.backends.torch.allocator_pools import Block, Pool

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE, MAX_SPLIT, NATIVE = "expandable_segments", "max_split_size_mb", "native"
WITHOUT_EFFECT = frozenset(
    {"garbage_collection_threshold", "pinned_use_cuda_host_register", "pinned_num_register_threads"}
)
"""What tells of memory that is given back near a limit, or of the host's: nothing that is reserved is other with it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocatorSettings:
    """What of ``PYTORCH_ALLOC_CONF``, or ``PYTORCH_CUDA_ALLOC_CONF`` as it was called, decides about memory.

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
        """Return what these variables say.

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
        return self._limit is None or self.now.reserved + segment_size_of(size) <= self._limit

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
