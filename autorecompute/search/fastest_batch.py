"""Choice of the batch to try next."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.figures import CurvePoint


POINTS_OF_A_LINE = 2  # fewer points have no line through them
FLAT = 0.01  # peaks that differ by less than this share do not grow
FORECAST_SHARE = 0.97  # of the limit, for what is forecast from the steps of a trial: a whole process needs more


def _peaks_without(curve: Sequence[CurvePoint]) -> dict[int, int]:
    return {point.batch: point.without.peak_bytes for point in curve if point.without.peak_bytes is not None}


def per_sample_bytes(curve: Sequence[CurvePoint], resting_bytes: int) -> float | None:
    """Return the bytes that a sample adds to the peak without recompute; ``None`` where no peak is known.

    One peak alone is held against the model at rest. That leaves out what a process takes for its start, so that the
    figure is rather too large, and what is guessed from it fits.
    """
    peaks = _peaks_without(curve)
    if not peaks:
        return None
    low, high = min(peaks), max(peaks)
    if peaks[high] > peaks[low]:
        return (peaks[high] - peaks[low]) / (high - low)
    return max(peaks[high] - resting_bytes, 1) / high


SURELY_TOO_LARGE = 1.1  # a batch that is forecast to need so many times the limit is not measured without recompute
START = 8  # the first batch to be measured: small enough for most cards, large enough to tell what a sample takes
CLOSE = 0.05  # the largest batch that fits without recompute is known well enough within this share
FASTEST_GROWTH = 8  # times as large as one that fits: forecasts from far away are not to end a machine
MOST_WITHOUT = 10  # batches that are measured without recompute
APART = 2.5  # the fastest batch has neighbours that are measured, and no farther away than this factor
LADDER = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)  # multiples of the largest that fits without
LEAST_STEP = 1.1  # a batch that is larger by less than this is not worth a tuning of its own
NOISE = 0.02  # throughput that grows by less than this share does not grow
PATIENCE = 2  # so many batches in a row that gain nothing end the search; one does where no larger batch can gain

MOST_TUNED = 6
SHARES = 3  # a batch gets a third of the trials and the time that are left: it learns from those before it


def _least_too_large(curve: Sequence[CurvePoint]) -> float:
    tuned = [point for point in curve if point.recomputed is not None]
    return min((point.batch for point in tuned if not point.fits_with), default=math.inf)


@dataclass(frozen=True, slots=True)
class BatchChooser:
    """Chooses the batches to try: those that were asked for, or any.

    Where nobody asked for any, it goes from the largest batch that fits without recompute upward, as long as throughput
    grows.

    Args:
        limit_bytes: The most that the peak may reach.
        resting_bytes: Bytes held without any activation.
        listed: The batches that were asked for, in ascending order.
        start: The first batch, if none is listed.
    """

    limit_bytes: int
    resting_bytes: int
    listed: tuple[int, ...] = ()
    start: int = START

    def without(self, curve: Sequence[CurvePoint]) -> int | None:
        """Return the next batch to run without recompute; ``None`` when a further one would tell nothing.

        Of those listed it is the next one, as long as all before it fit and it may fit as well; else one towards the
        largest that fits, then beside the fastest.
        """
        if self.listed:
            fits = {point.batch: point.fits_without for point in curve}
            batch = next((batch for batch in self.listed if not fits.get(batch)), None)
            return None if batch is None or batch in fits or self._is_too_large(batch, curve) else batch
        if not curve:
            return self.start
        if len(curve) >= MOST_WITHOUT or any(point.recomputed is not None for point in curve):
            return None
        larger = self._towards_the_limit(curve)
        return larger if larger is not None else _beside_the_fastest(curve)

    def recomputed(self, curve: Sequence[CurvePoint]) -> int | None:
        """Return the next batch to tune with recompute; ``None`` when all listed fit or are tuned.

        If none is listed, it is the next larger one that some config may hold, unless throughput has ceased to grow.
        """
        if self.listed:
            return next(iter(self._left(curve)), None)
        largest = max((point.batch for point in curve if point.fits_without or point.fits_with), default=0)
        too_large = _least_too_large(curve)
        batch = min(_next_on_ladder(curve, largest), self._largest_with(curve))
        if batch >= too_large:
            batch = (largest + too_large) / 2
        is_step = batch >= max(LEAST_STEP * largest, largest + 1)
        tuned = sum(point.recomputed is not None for point in curve)
        if tuned >= MOST_TUNED or not is_step or _has_ceased_to_grow(curve, has_end=too_large < math.inf):
            return None
        return math.floor(batch)

    def expected(self, curve: Sequence[CurvePoint]) -> int:
        """Return the number of batches among which trials and time have to be shared, the next one included."""
        if self.listed:
            return max(len(self._left(curve)), 1)
        # As long as none fits, the next one may be all there is.
        return SHARES if any(point.fits_without or point.fits_with for point in curve) else 1

    def untuned(self, curve: Sequence[CurvePoint]) -> list[int]:
        """Return the listed batches that some config may hold, and that nobody has tuned."""
        return [batch for batch in self._left(curve) if batch < _least_too_large(curve)]

    def may_answer(self, batch: int) -> bool:
        """Tell whether this batch may be the answer, and not only what it is compared with."""
        return not self.listed or batch in self.listed

    def _left(self, curve: Sequence[CurvePoint]) -> list[int]:
        done = {point.batch for point in curve if point.fits_without or point.recomputed is not None}
        return [batch for batch in self.listed if batch not in done]

    def _is_too_large(self, batch: int, curve: Sequence[CurvePoint]) -> bool:
        slope = per_sample_bytes(curve, self.resting_bytes)
        return slope is not None and self.resting_bytes + slope * batch > SURELY_TOO_LARGE * self.limit_bytes

    def _towards_the_limit(self, curve: Sequence[CurvePoint]) -> int | None:
        fitting = max((point.batch for point in curve if point.fits_without), default=0)
        too_large = min((point.batch for point in curve if not point.fits_without), default=None)
        guess = self._largest_without(curve)
        if too_large is not None and (guess is None or guess >= too_large):
            # What failed told no peak, or less than its whole process needs: halfway is as good as any guess.
            guess = (fitting + too_large) // 2
        last = list(_peaks_without(curve).values())[-POINTS_OF_A_LINE:]
        if guess is not None and too_large is None and len(last) > 1 and last[1] < last[0] * (1 + FLAT):
            # The two largest batches have one peak: that of the process's start, which says nothing.
            guess = max(guess, 2 * fitting)
        if guess is None or guess <= fitting * (1 + CLOSE):
            return None
        return min(guess, fitting * FASTEST_GROWTH) if fitting else guess

    def _largest_without(self, curve: Sequence[CurvePoint]) -> int | None:
        """Return the largest batch that should fit without recompute; ``None`` where no peak is known."""
        slope = per_sample_bytes(curve, self.resting_bytes)
        if slope is None:
            return None
        peaks = {peak: batch for batch, peak in _peaks_without(curve).items()}
        below = max((peak for peak in peaks if peak <= self.limit_bytes), default=None)
        above = min((peak for peak in peaks if peak > self.limit_bytes), default=None)
        if below is not None and above is not None and peaks[above] > peaks[below]:
            # Between two that enclose the limit, their own line is nearer than one through all.
            slope = (above - below) / (peaks[above] - peaks[below])
        nearest = above if below is None else below
        assert nearest is not None, "a slope comes from a peak"
        return math.floor(peaks[nearest] + (self.limit_bytes - nearest) / slope)

    def _largest_with(self, curve: Sequence[CurvePoint]) -> float:
        """Return the largest batch that any config should hold, by the least peak seen; infinite before any was."""
        tuned = {point.batch: point.recomputed.least_peak_bytes for point in curve if point.recomputed is not None}
        batch, peak = max(((batch, peak) for batch, peak in tuned.items() if peak is not None), default=(0, 0))
        room = FORECAST_SHARE * self.limit_bytes - self.resting_bytes
        return batch * max(room, 0.0) / max(peak - self.resting_bytes, 1) if peak else math.inf


def _next_on_ladder(curve: Sequence[CurvePoint], largest: int) -> float:
    foot = max((point.batch for point in curve if point.fits_without), default=0)
    if not foot:
        # Nothing fits without recompute: half of what did not is as good a beginning as any.
        return 2 * largest if largest else max(min(point.batch for point in curve) // 2, 1)
    rungs = [round(foot * ratio) for ratio in LADDER]
    return next((rung for rung in rungs if rung >= LEAST_STEP * largest), 0)


def _beside_the_fastest(curve: Sequence[CurvePoint]) -> int | None:
    speeds = {point.batch: point.without.samples_per_second or 0.0 for point in curve if point.fits_without}
    if not speeds:
        return None
    fastest = max(speeds, key=lambda batch: speeds[batch])
    below = max((batch for batch in speeds if batch < fastest), default=0)
    above = min((batch for batch in speeds if batch > fastest), default=fastest)
    wanted = [fastest // 2] if below * APART < fastest and below < fastest // 2 else []
    wanted += [2 * fastest] if above > APART * fastest else []
    # What failed stays far away, and fails again.
    tried = {point.batch for point in curve}
    return next((batch for batch in wanted if batch not in tried), None)


def _has_ceased_to_grow(curve: Sequence[CurvePoint], *, has_end: bool) -> bool:
    """Tell whether no larger batch is worth a try.

    ``has_end`` says that a batch is known that no config holds: what lies below is then between two that were tuned.
    """
    best = max((point.without.samples_per_second or 0.0 for point in curve if point.fits_without), default=0.0)
    idle = 0
    for point in sorted(curve, key=lambda point: point.batch):
        if point.recomputed is None or not point.fits_with:
            continue
        speed = point.recomputed.figures.samples_per_second or 0.0
        idle = 0 if speed > best * (1 + NOISE) else idle + 1
        best = max(best, speed)
    if idle == 0 or idle >= PATIENCE or has_end:
        return idle > 0
    # Recompute makes no step faster: the line through the steps without it tells what a larger batch reaches at most.
    speeds = {point.batch: point.without.samples_per_second for point in curve if point.without.samples_per_second}
    if len(speeds) < POINTS_OF_A_LINE:
        return False
    seconds = [batch / speed for batch, speed in speeds.items()]
    slope, start = statistics.linear_regression(list(speeds), seconds)
    batch = LADDER[-1] * max(point.batch for point in curve)
    return batch <= best * (1 + NOISE) * (start + slope * batch)
