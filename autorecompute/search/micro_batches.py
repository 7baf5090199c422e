"""Choice of the micro-batches to try of one effective batch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.search.fastest_batch import FORECAST_SHARE, MOST_WITHOUT, NOISE, POINTS_OF_A_LINE, per_sample_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.figures import CurvePoint

MOST_TUNED = 3
SHARES = 2
"""The first micro-batch that is tuned gets half of the trials: it is the likeliest, and the others learn from it."""

OPTIMISM = 0.5
"""Of the time that forecasts add to a step with recompute, tuned configs add so much at the least: they mix plans."""


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a positive number, in ascending order."""
    low = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return tuple(sorted({*low, *(number // one for one in low)}))


@dataclass(frozen=True, slots=True)
class MicroBatchChooser:
    """Chooses the micro-batches to try: those that can give the most samples a second.

    An effective step costs ``c + d / m`` at micro-batch ``m``: what samples take, and what each pass takes besides.
    That line through what was measured without recompute bounds what any larger micro-batch can give with it.

    Args:
        limit_bytes: The most that the peak may reach.
        resting_bytes: Bytes held without any activation.
        listed: The micro-batches that make the effective batch, in ascending order.
        start: The one to begin with, which should fit without recompute.
        overheads: By micro-batch, the least share of a step that is forecast for any config which holds the limit;
            those that none should hold are missing. ``None`` where nothing is forecast.
    """

    limit_bytes: int
    resting_bytes: int
    listed: tuple[int, ...]
    start: int = 1
    overheads: Mapping[int, float] | None = None

    def without(self, curve: Sequence[CurvePoint]) -> int | None:
        """Return the next micro-batch to run without recompute; ``None`` when a further one would tell nothing.

        It goes to the largest that fits, and then down as long as that is faster.
        """
        if not curve:
            return max((batch for batch in self.listed if batch <= self.start), default=self.listed[0])
        if len(curve) >= MOST_WITHOUT or any(point.recomputed is not None for point in curve):
            return None
        tried, seconds = {point.batch for point in curve}, _seconds_without(curve)
        if not seconds:
            return max((batch for batch in self.listed if batch < min(tried)), default=None)
        too_large = min((point.batch for point in curve if not point.fits_without), default=math.inf)
        slope = per_sample_bytes(curve, self.resting_bytes) or 0.0
        room = (FORECAST_SHARE * self.limit_bytes - self.resting_bytes) / slope if slope > 0 else 0.0
        larger = [batch for batch in self.listed if max(seconds) < batch < too_large and batch <= room]
        if larger:
            return larger[-1]
        fastest = min(seconds, key=lambda batch: seconds[batch])
        below = max((batch for batch in self.listed if batch < fastest), default=None)
        return None if below in tried else below

    def recomputed(self, curve: Sequence[CurvePoint]) -> int | None:
        """Return the next micro-batch to tune with recompute; ``None`` when none of the others can win."""
        able = self.untuned(curve)
        if not able or sum(point.recomputed is not None for point in curve) >= MOST_TUNED:
            return None
        return min(able, key=lambda batch: (self._least_seconds(batch, curve) or 0.0, batch))

    def expected(self, curve: Sequence[CurvePoint]) -> int:
        """Return the number of micro-batches among which trials and time are shared, the next one included."""
        return max(min(len(self.untuned(curve)), SHARES), 1)

    def untuned(self, curve: Sequence[CurvePoint]) -> list[int]:
        """Return the micro-batches that may win with recompute and were not tuned."""
        tuned = [point for point in curve if point.recomputed is not None]
        if len(tuned) >= MOST_TUNED:
            return []
        fitting = max((point.batch for point in curve if point.fits_without), default=0)
        too_large = min((point.batch for point in tuned if not point.fits_with), default=math.inf)
        done = {point.batch for point in tuned}
        left = [batch for batch in self.listed if fitting < batch < too_large and batch not in done]
        if self.overheads is not None:
            left = [batch for batch in left if batch in self.overheads]
        return [batch for batch in left if self._may_win(batch, curve)]

    def may_answer(self, batch: int) -> bool:
        """Tell whether this batch makes the effective one."""
        return batch in self.listed

    def _may_win(self, batch: int, curve: Sequence[CurvePoint]) -> bool:
        known = {**_seconds_without(curve), **_seconds_with(curve)}
        if not known:
            return True
        least = self._least_seconds(batch, curve)
        if least is None:
            # Nothing bounds it: a larger one is tried as long as that was faster the last time.
            return max(known) == min(known, key=lambda one: known[one])
        return least * (1 + NOISE) < min(known.values())

    def _least_seconds(self, batch: int, curve: Sequence[CurvePoint]) -> float | None:
        """Return the least that a sample can take with recompute, in seconds; ``None`` where nothing tells."""
        plain = _seconds_without(curve)
        if len(plain) < POINTS_OF_A_LINE:
            return None
        passes = [1 / one for one in plain]
        slope, samples = statistics.linear_regression(passes, list(plain.values()))
        slope = max(slope, 0.0)
        samples = samples if slope else min(plain.values())

        def without(one: int) -> float:
            return samples + slope / one

        least = without(batch)
        if self.overheads is not None:
            least *= 1 + OPTIMISM * self.overheads[batch]
        # A larger one has to make more again.
        tuned = [seconds / without(one) for one, seconds in _seconds_with(curve).items() if one < batch]
        return max(least, *(factor * without(batch) for factor in tuned)) if tuned else least


def _seconds_without(curve: Sequence[CurvePoint]) -> dict[int, float]:
    """Return the seconds that a sample takes without recompute, by micro-batch."""
    speeds = {point.batch: point.without.samples_per_second for point in curve if point.fits_without}
    return {batch: 1 / speed for batch, speed in speeds.items() if speed}


def _seconds_with(curve: Sequence[CurvePoint]) -> dict[int, float]:
    found = [(point.batch, point.recomputed.figures.samples_per_second) for point in curve if point.recomputed]
    return {batch: 1 / speed for batch, speed in found if speed}
