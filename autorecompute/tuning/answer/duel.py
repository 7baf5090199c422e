"""Recompute beside no recompute in fresh processes that take turns, until it is clear which of them is faster.

Two processes that run minutes apart on a shared machine differ by more than the margin for reasons of the machine's
own. Neighbours in time share its mood: their ratio tells more than their figures.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.figures import Comparison
from autorecompute.tuning.answer.intervals import student_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MARGIN = 0.02
"""Throughputs closer than this share are as good as equal."""

NEAR = 0.15
"""Two pairs that are farther from the margin than this share, on the same side of it, are enough. One never is: what
slows one process of it alone looks like a large difference."""

PAIRS = 3
"""So many pairs are measured at most."""

MISS = 0.05
"""Chance that an interval lies on the wrong side of the margin."""


class Duel:
    """Compares two runs by pairs of neighbours: A B, B A, A B.

    Args:
        run_with: Runs the config that recomputes in a fresh process; its samples/s, or ``None`` where it failed.
        run_without: The same without recompute.
        least_ratio: What the ratio is held against.
        has_time: Whether there is time for another pair.
    """

    def __init__(
        self,
        run_with: Callable[[], float | None],
        run_without: Callable[[], float | None],
        *,
        least_ratio: float,
        has_time: Callable[[], bool] = lambda: True,
    ) -> None:
        self._run_with, self._run_without = run_with, run_without
        self._least_ratio, self._has_time = least_ratio, has_time

    def fight(self, ratio: float, *, are_neighbours: bool) -> Comparison:
        """What the pairs say, after a first comparison.

        Args:
            ratio: Throughput with recompute over that without, as measured so far.
            are_neighbours: Whether the two were measured one right after the other, so that they count as a pair.
        """
        ratios = [ratio] if are_neighbours else []
        found = compare([ratio], self._least_ratio)
        if not are_neighbours:
            found = replace(found, pairs=0, is_clear=False)
        while not found.is_clear and len(ratios) < PAIRS and self._has_time():
            another = self._measure_pair(begins_with_recompute=len(ratios) % 2 == 0)
            if another is None:
                break
            ratios.append(another)
            found = compare(ratios, self._least_ratio)
        return found

    def _measure_pair(self, *, begins_with_recompute: bool) -> float | None:
        if begins_with_recompute:
            recomputed, plain = self._run_with(), self._run_without()
        else:
            plain, recomputed = self._run_without(), self._run_with()
        return recomputed / plain if recomputed and plain else None


def compare(ratios: Sequence[float], least_ratio: float) -> Comparison:
    """What ratios of throughput, one of each pair, say about a ratio that is to be reached.

    Told is their median: of three pairs one may be spoilt. It lies within the interval, which is that of their mean.
    """
    logs = [math.log(ratio) for ratio in ratios]
    edge = math.log(least_ratio)
    if len(logs) == 1:
        return Comparison(ratio=ratios[0], pairs=1, is_clear=False)
    centre = statistics.fmean(logs)
    half = student_quantile(MISS, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    are_far = min(logs) > edge + math.log1p(NEAR) or max(logs) < edge - math.log1p(NEAR)
    return Comparison(
        ratio=statistics.median(ratios),
        low=math.exp(centre - half),
        high=math.exp(centre + half),
        pairs=len(ratios),
        is_clear=are_far or abs(centre - edge) > half,
    )
