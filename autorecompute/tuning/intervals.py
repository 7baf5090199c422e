"""Intervals for the centre of a few noisy values: small samples, outliers, no assumption on the noise.

Three intervals are made and the narrowest is taken, each with a third of the chance to miss, so that the sum is kept:

* Student's, around the mean. It serves the first few rounds on a quiet machine; one outlier makes it wide, not wrong.
* Wilcoxon's signed-rank interval (Hodges and Lehmann), exact for every noise that is symmetric. It needs about a dozen
  values for a chance of one in some thousands.
* The median with its error from the median absolute deviation, from ``LEAST_FOR_MAD`` values on. It stays narrow where
  a quarter of the values are outliers, and is exact for none.

Differences between two configs in rounds of random order are symmetric whatever else the machine did, because either
order was as likely.
"""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


LEAST_FOR_MAD = 12
MAD_OF_NORMAL = statistics.NormalDist().inv_cdf(0.75)
"""Median absolute deviation of normal noise, in standard deviations."""

MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""Ratio of a median's error to a mean's, for the centre of normal noise."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Confidence interval of a centre; infinite ends where too little is known.

    Attributes:
        low: Lower end.
        middle: The estimate, in the values' own unit; bears outliers.
        high: Upper end.
    """

    low: float
    middle: float
    high: float


def interval(values: Sequence[float], miss: float) -> Interval:
    """Return the interval of the values' centre, which has the estimate in it even where that is of another kind.

    Args:
        values: One for each round, at least one.
        miss: Chance that the centre lies below the interval, and the same again that it lies above.
    """
    means, count, share = _pair_means(values), len(values), miss / 3
    middle, ends = statistics.median(means), [(-math.inf, math.inf)]
    if count > 1:
        mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(count)
        half = student_quantile(share, count - 1) * error
        ends.append((mean - half, mean + half))
    if outside := signed_rank_quantile(share, count):
        ends.append((means[outside - 1], means[-outside]))
    if count >= LEAST_FOR_MAD:
        median = statistics.median(values)
        deviation = statistics.median(abs(value - median) for value in values) / MAD_OF_NORMAL
        half = student_quantile(share, count // 2) * deviation * MEDIAN_ERROR / math.sqrt(count)
        ends.append((median - half, median + half))
    low, high = min(ends, key=lambda pair: pair[1] - pair[0])
    return Interval(min(low, middle), middle, max(high, middle))


def centre(values: Sequence[float]) -> float:
    """Return the estimate alone: the median of the means of all pairs, each value paired with itself too."""
    return statistics.median(_pair_means(values))


def _pair_means(values: Sequence[float]) -> list[float]:
    return sorted((first + second) / 2 for index, first in enumerate(values) for second in values[index:])


@functools.cache
def signed_rank_quantile(miss: float, count: int) -> int:
    """Return the number of pair means outside the interval of ``count`` values, at each end.

    0 where they are too few for one.
    """
    sums = [1] + [0] * (count * (count + 1) // 2)
    for rank in range(1, count + 1):
        for total in range(len(sums) - 1, rank - 1, -1):
            sums[total] += sums[total - rank]
    allowed, seen = miss * 2**count, 0
    for total, ways in enumerate(sums):
        seen += ways
        if seen > allowed:
            return total
    return len(sums)


@functools.cache
def student_quantile(miss: float, freedom: int) -> float:
    """Return the value that Student's t with so many degrees of freedom exceeds with the chance ``miss``, below 0.5."""
    low, high = 0.0, 1.0
    while _student_tail(high, freedom) > miss:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_tail(middle, freedom) > miss else (low, middle)
    return high


def _student_tail(quantile: float, freedom: int) -> float:
    """Chance that t exceeds the quantile, by the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(quantile / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2 == 1
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for index in range(1 + is_odd, freedom, 2):
        total += term
        term *= cosine**2 * index / (index + 1)
    within = 2 / math.pi * (angle + sine * total) if is_odd else sine * total
    return (1 - within) / 2
