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
    """With a limit in bytes as ``set_per_process_memory_fraction`` sets it; a segment may grow a page beyond it.

    All that is free goes back at once, also what PyTorch with ``max_split_size_mb`` gives back piece by piece.
    """

    def __init__(self, limit=None, **settings):
        super().__init__(**settings)
        self.limit, self.retries = limit, 0
        for pool in self.pools:
            pool.grow = functools.partial(self._grow, pool.grow)

    def empty_cache(self):
        """``release_cached_blocks``."""
        for pool in self.pools:
            for block in tuple(pool.free_blocks):
                (_unmap_pages if isinstance(pool, GrowingSegment) else _release)(pool, block)

    def reset_peak(self):
        """Forget all peaks before now."""
        self.peak = self.now

    def _grow(self, grow, size):
        if not self._has_room(size):
            self.empty_cache()
            self.retries += 1
            if not self._has_room(size):
                raise MemoryError(f"{size} bytes were requested with {self.now.reserved} reserved")
        return grow(size)

    def _has_room(self, size):
        return self.limit is None or self.now.reserved + segment_size(size) <= self.limit


def is_split(block):
    """Tell whether its segment has other blocks."""
    return block.before is not None or block.after is not None


def _release(pool, block):
    """``release_block``: only whole segments go back to the driver."""
    if not is_split(block):
        pool._take(block)
        pool.reserved -= block.size


def _unmap_pages(segment, block):
    """``unmap_block``, of the pages that lie in a free block as a whole."""
    first, end = rounded_up(block.address, segment._page), block.end // segment._page * segment._page
    if first >= end:
        return
    segment._take(block)
    if first > block.address:
        segment._put(block.cut(first - block.address))
    if end < block.end:
        pages = block.cut(end - first)
        segment._put(block)
        block = pages
    segment.reserved -= block.size
    block.is_mapped = False
    segment._join(block)
    bisect.insort(segment._gaps, block, key=operator.attrgetter("address"))
