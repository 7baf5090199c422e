"""Predicts the peak of every config from one profiled step."""

from __future__ import annotations

import bisect
import functools
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.backends.ortmodule.memory.blueprint import Blueprint, draw_blueprint, write_out
from autorecompute.backends.ortmodule.memory.simulator import OrtSimulator
from autorecompute.memory import Forecast, MemoryModel, Phase, StepProfile, StepProfiles, Timeline, trace
from autorecompute.plans import Config, Plan
from autorecompute.units import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.plans import Choice


CHUNK_BYTES = 256
FIRST_REGION_BYTES = MIB
LARGEST_DEAD_BYTES = 128 * MIB
"""A chunk is split, however little is left of it in proportion, where so much would lie dead."""

_SPAN = 1 << 60  # addresses from one region's beginning to the next one's: regions never touch


def taken_bytes(timeline: Timeline) -> int:
    """Return the bytes of the arena for a whole step that begins with an empty one."""
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


LIKELY_ERROR = 0.02
"""Forecasts were off by less than this share in half of all configs that ``make bench-forecast`` measured."""

WORST_ERROR = 0.08
"""No forecast there was off by so much (the worst by 4.7 %): one this far from a limit is sure of its side."""

CHECKED_GROWTH = 20.0
"""Forecasts were held against measurements at up to so many times the profiled stash; farther out they may err twice as
much."""

LARGEST_PASSING_SHARE = 0.1
"""Largest share of the allocator's bytes for a step's passing memory, twice that of BERT: the rest in the small step of
a small model is mostly noise."""


@dataclass(frozen=True)
class OrtMemoryModel(MemoryModel):
    """Peaks of ORT's training sessions, from profiled small steps; one without recompute is among them."""

    small: StepProfiles

    likely_error = LIKELY_ERROR

    @property
    def profiles(self) -> Mapping[Config, StepProfile]:
        """Return the profiled step of each config."""
        return self.small.profiles

    looked_at = profiles

    @functools.cached_property
    def blueprint(self) -> Blueprint:
        """Draw a step under any config; both steps it is drawn from have to be among the profiles."""
        return draw_blueprint(self.profiles[Config()], self.profiles[self.space.all_on])

    def base_bytes(self, dims: Mapping[str, int]) -> int:
        """Return the bytes that a process needs at its peak beyond its live tensors, at these dimensions."""
        plain = self.forecast(Config(), dims)
        return plain.peak_bytes - plain.live_bytes

    @property
    def dims(self) -> dict[str, int]:
        """Return the dimensions of the profiled steps."""
        return self.profiles[Config()].dims

    def timeline(self, config: Config, dims: Mapping[str, int] | None = None) -> Timeline:
        """Return a config's step, at other dimensions where they are given; written out where it was not profiled."""
        profile = self.profiles.get(config)
        return trace(write_out(self.blueprint, config) if profile is None else profile, dims)

    def simulator(self, dims: Mapping[str, int], choices: Sequence[Choice]) -> OrtSimulator:
        """Return a simulator; both steps the blueprint is drawn from have to be among the profiles."""
        return OrtSimulator(self.blueprint, dims, choices)

    def forecast(self, config: Config, dims: Mapping[str, int]) -> Forecast:
        """Forecast a profiled config at these dimensions.

        Two parts were measured without recompute at the profiled dimensions: what the process held between two steps,
        less what the allocator keeps of its tensors, stays as it is; what a step took for a moment, in workspaces and
        in PyTorch, grows as the stash does. The third, what the allocator keeps, is simulated.
        """
        stash_bytes = self.timeline(Config()).stash_bytes
        growth = self.timeline(Config(), dims).stash_bytes / stash_bytes if stash_bytes else 1.0
        timeline = self.timeline(config, dims)
        taken = taken_bytes(timeline)
        passing = min(growth * (self.small.peak_bytes - self.small.held_bytes), LARGEST_PASSING_SHARE * taken)
        return Forecast(
            config=config,
            peak_bytes=self._fixed_bytes + taken + round(passing),
            live_bytes=timeline.peak_bytes,
            stash_bytes=timeline.stash_bytes,
            error_share=WORST_ERROR if growth <= CHECKED_GROWTH else 2 * WORST_ERROR,
            recompute_share=self._recompute_share(config),
        )

    def plans_by_tensor(self) -> dict[str, Plan]:
        """Return the plan that each tensor depends on, by the name of the tensor as far as known."""
        kept = _stash_of(self.profiles[Config()])
        found = {}
        for plan in self.space.plans:
            if (profile := self.profiles.get(Config.of([plan]))) is not None:
                saved = kept - _stash_of(profile)
                again = {tensor.name for tensor in profile.tensors if profile.phase_of(tensor) is Phase.RECOMPUTE}
                found.update(dict.fromkeys(saved | again, plan))
        return found

    @functools.cached_property
    def _fixed_bytes(self) -> int:
        return self.small.held_bytes - taken_bytes(self.timeline(Config()))

    @functools.cached_property
    def _seconds(self) -> dict[str, float]:
        """Time of each operation: the median over all profiles that have it; any one may have been disturbed."""
        found = defaultdict(list)
        for profile in self.profiles.values():
            for operation in profile.operations:
                found[operation.name].append(operation.seconds)
        return {name: statistics.median(seconds) for name, seconds in found.items()}

    def _recompute_share(self, config: Config) -> float:
        again = (op for op in self.profiles[config].operations if op.phase is Phase.RECOMPUTE)
        whole = math.fsum(self._seconds[operation.name] for operation in self.profiles[Config()].operations)
        return math.fsum(self._seconds[operation.name] for operation in again) / whole if whole else 0.0


def _stash_of(profile: StepProfile) -> set[str]:
    return {tensor.name for tensor in profile.tensors if profile.is_stashed(tensor)}
