"""How memory and time grow with the batch, as straight lines through what was measured."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.figures import CurvePoint

POINTS_OF_A_LINE = 2
"""Fewer points have no line through them."""

FLAT = 0.01
"""Peaks that differ by less than this share do not grow."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Between what the memory of a batch lies.

    Attributes:
        limit_bytes: What the peak may reach.
        resting_bytes: What is held without any activation.
    """

    limit_bytes: int
    resting_bytes: int


def per_sample_bytes(curve: Sequence[CurvePoint], limits: Limits) -> float | None:
    """Return what a sample adds to the peak without recompute; ``None`` where no peak is known.

    One peak alone is held against the model at rest. That leaves out what a process takes for its start, so that the
    figure is rather too large, and what is guessed from it fits.
    """
    peaks = {point.batch: point.without.peak_bytes for point in curve if point.without.peak_bytes is not None}
    if not peaks:
        return None
    low, high = min(peaks), max(peaks)
    if peaks[high] > peaks[low]:
        return (peaks[high] - peaks[low]) / (high - low)
    return max(peaks[high] - limits.resting_bytes, 1) / high


def largest_without(curve: Sequence[CurvePoint], limits: Limits) -> int | None:
    """Return the largest batch that should fit without recompute; ``None`` where no peak is known."""
    slope = per_sample_bytes(curve, limits)
    if slope is None:
        return None
    peaks = {point.without.peak_bytes: point.batch for point in curve if point.without.peak_bytes is not None}
    below = max((peak for peak in peaks if peak <= limits.limit_bytes), default=None)
    above = min((peak for peak in peaks if peak > limits.limit_bytes), default=None)
    if below is not None and above is not None and peaks[above] > peaks[below]:
        # Between two that enclose the limit, their own line is nearer than one through all.
        slope = (above - below) / (peaks[above] - peaks[below])
    nearest = above if below is None else below
    assert nearest is not None, "a slope comes from a peak"
    return math.floor(peaks[nearest] + (limits.limit_bytes - nearest) / slope)


def is_hidden(curve: Sequence[CurvePoint]) -> bool:
    """Tell whether the two largest batches have one peak: that of the process's start, which says nothing."""
    peaks = [point.without.peak_bytes for point in curve if point.without.peak_bytes is not None][-POINTS_OF_A_LINE:]
    return len(peaks) == POINTS_OF_A_LINE and peaks[1] < peaks[0] * (1 + FLAT)


def largest_with(curve: Sequence[CurvePoint], limits: Limits, share: float) -> float:
    """Return the largest batch that any config should hold, going by the least peak seen; infinite before any was.

    Args:
        curve: What was measured.
        limits: Between what memory lies.
        share: Of the limit, so much may be filled by what is forecast.
    """
    seen = [
        (point.batch, point.recomputed.least_peak_bytes)
        for point in curve
        if point.recomputed is not None and point.recomputed.least_peak_bytes is not None
    ]
    if not seen:
        return math.inf
    batch, peak = max(seen)
    room = share * limits.limit_bytes - limits.resting_bytes
    return max(batch * room / max(peak - limits.resting_bytes, 1), 0.0)


def throughput_without(curve: Sequence[CurvePoint], batch: float) -> float:
    """Samples/s that this batch should give if it needed no recompute; infinite where nothing can be said.

    Recompute makes no step faster, so this is what recompute can reach at most.
    """
    seconds = {
        point.batch: point.batch / point.without.samples_per_second
        for point in curve
        if point.without.samples_per_second
    }
    if len(seconds) < POINTS_OF_A_LINE:
        return math.inf
    slope, start = statistics.linear_regression(list(seconds), list(seconds.values()))
    step_seconds = start + slope * batch
    return batch / step_seconds if step_seconds > 0 else math.inf
