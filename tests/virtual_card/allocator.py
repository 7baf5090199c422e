"""PyTorch's caching allocator on a card that may be full: it gives free memory back before a request fails."""

import bisect
import functools
import operator

from autorecompute.backends.torch.forecast.caching_allocator import (
    CachingAllocator,
    GrowingSegment,
    rounded_up,
    segment_size,
)


class LimitedAllocator(CachingAllocator):
    """With a limit in bytes as ``set_per_process_memory_fraction`` sets it; a segment may grow a page beyond it."""

    def __init__(self, limit=None, **settings):
        super().__init__(**settings)
        self.limit, self.retries = limit, 0
        for pool in self.pools:
            pool.grow = functools.partial(self._grow, pool, pool.grow)

    def empty_cache(self):
        """``release_cached_blocks``."""
        for pool in self.pools:
            (_unmap_pages if isinstance(pool, GrowingSegment) else _release)(pool)

    def reset_peak(self):
        """Forget all peaks before now."""
        self.peak = self.now

    def _grow(self, pool, grow, size):
        if not self._has_room(size) and not (_release_enough(pool, size) and self._has_room(size)):
            self.empty_cache()
            self.retries += 1
            if not self._has_room(size):
                raise MemoryError(f"{size} bytes were requested with {self.now.reserved} reserved")
        return grow(size)

    def _has_room(self, size):
        return self.limit is None or self.now.reserved + segment_size(size) <= self.limit


def _release(pool):
    """``release_blocks``."""
    for block in [block for block in pool.free_blocks if not block.is_split]:
        _give_back(pool, block)


def _release_enough(pool, size):
    """``release_available_cached_blocks``: the smallest unsplit segment that is enough, or else the largest ones."""
    least = pool._max_split_size
    if least is None:
        return False
    wanted = max(size, least)
    single = next((block for block in pool.free_blocks if block.size >= wanted), None)
    if single is not None:
        _give_back(pool, single)
        return True
    released = 0
    while released < wanted and pool.free_blocks and pool.free_blocks[-1].size >= least:
        released += pool.free_blocks[-1].size
        _give_back(pool, pool.free_blocks[-1])
    return released >= wanted


def _give_back(pool, block):
    assert not block.is_split, "only whole segments go back to the driver"
    pool._take(block)
    pool.reserved -= block.size


def _unmap_pages(pool):
    """``unmap_block``, of all pages that lie in free blocks as a whole."""
    for block in tuple(pool.free_blocks):
        first, end = rounded_up(block.address, pool._page), block.end // pool._page * pool._page
        if first < end:
            pool._take(block)
            _unmap(pool, block, first, end)


def _unmap(pool, block, first, end):
    if first > block.address:
        pool._put(block.cut(first - block.address))
    if end < block.end:
        pages = block.cut(end - first)
        pool._put(block)
        block = pages
    pool.reserved -= block.size
    block.is_mapped = False
    pool._join(block)
    bisect.insort(pool._gaps, block, key=operator.attrgetter("address"))
