"""What an allocator takes for the tensors of a step: more than they hold, because it cannot fill every gap.

The model is ORT's CPU arena (``bfc_arena.cc``): best fit with coalescing, chunks of 256 bytes, a chunk split where at
least half of it would be left, regions that double. Only pages that were written count, as in resident memory.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from typing import TYPE_CHECKING

from autorecompute.units import MIB

if TYPE_CHECKING:
    from autorecompute.memory.timeline import Timeline

CHUNK_BYTES = 256
FIRST_REGION_BYTES = MIB
LARGEST_DEAD_BYTES = 128 * MIB
"""A chunk is split, however little is left of it in proportion, where so much would lie dead."""

_SPAN = 1 << 60
"""Addresses from one region's beginning to the next one's: regions never touch."""


def taken_bytes(timeline: Timeline) -> int:
    """Return what the arena takes for a whole step that begins with an empty one."""
    arena = Arena()
    made, over = defaultdict(list), defaultdict(list)
    for number, (tensor, size) in enumerate(zip(timeline.profile.tensors, timeline.sizes, strict=True)):
        made[tensor.first].append((number, size))
        over[tensor.last].append(number)
    for position in range(len(timeline.live_bytes)):
        for number, size in made[position]:
            arena.allocate(number, size)
        for number in over[position]:
            arena.release(number)
    return arena.touched_bytes


class Arena:
    """Memory that is given out in chunks of regions, and taken back."""

    def __init__(self) -> None:
        self._next_region_bytes = FIRST_REGION_BYTES
        self._touched: list[int] = []
        self._free: list[tuple[int, int]] = []
        self._free_from: dict[int, int] = {}
        self._free_to: dict[int, int] = {}
        self._given: dict[int, tuple[int, int]] = {}

    @property
    def touched_bytes(self) -> int:
        """Bytes that were given out at least once, and all below them in their regions."""
        return sum(self._touched)

    def allocate(self, key: int, size: int) -> None:
        """Give out a chunk of at least so many bytes; nothing for none."""
        if not size:
            return
        needed = -(-size // CHUNK_BYTES) * CHUNK_BYTES
        place = bisect.bisect_left(self._free, (needed, 0))
        if place == len(self._free):
            self._grow(needed)
            place = bisect.bisect_left(self._free, (needed, 0))
        found, start = self._free[place]
        self._take(start, found)
        if found >= 2 * needed or found - needed >= LARGEST_DEAD_BYTES:
            self._put(start + needed, found - needed)
            found = needed
        self._given[key] = (start, found)
        region, offset = divmod(start, _SPAN)
        self._touched[region] = max(self._touched[region], offset + needed)

    def release(self, key: int) -> None:
        """Take a chunk back, and join it with the free ones beside it."""
        if key not in self._given:
            return
        start, size = self._given.pop(key)
        if (before := self._free_to.get(start)) is not None:
            size += self._free_from[before]
            self._take(before, start - before)
            start = before
        if (after := self._free_from.get(start + size)) is not None:
            self._take(start + size, after)
            size += after
        self._put(start, size)

    def _grow(self, needed: int) -> None:
        size = self._next_region_bytes
        while size < needed:
            size *= 2
        # A region that was large enough at once makes the next one twice as large.
        self._next_region_bytes = 2 * size if size == self._next_region_bytes else size
        self._put(len(self._touched) * _SPAN, size)
        self._touched.append(0)

    def _put(self, start: int, size: int) -> None:
        bisect.insort(self._free, (size, start))
        self._free_from[start] = size
        self._free_to[start + size] = start

    def _take(self, start: int, size: int) -> None:
        del self._free[bisect.bisect_left(self._free, (size, start))]
        del self._free_from[start], self._free_to[start + size]
