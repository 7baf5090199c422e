"""Compares two ways to train in pairs."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.figures import Comparison, Verdict, judge
from autorecompute.tuning.budget import Task
from autorecompute.tuning.intervals import student_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


LEAST_PAIRS = 2
"""One pair has no interval: what slows one process of it alone looks like a large difference."""

PAIRS = 5
"""So many pairs of fresh processes are measured at most."""

LEAST_TO_GIVE_UP = 3
"""Three pairs tell roughly how far pairs scatter."""

TOO_NEAR = 0.5
"""The pairs end early where their mean is nearer to what it is held against than this share of half the interval that
all pairs would have. They decide as often as all pairs do, with fewer pairs where nothing is to be decided. With a
whole half they would decide less often."""

MISS = 0.05
"""Chance that an interval lies on the wrong side of the margin, each time that one is made."""

PAIR = (Task.CONFIRMATION, Task.CONFIRMATION)
"""Tasks of a pair of fresh processes."""


def compare_in_pairs(  # noqa: PLR0913  (two runs, and what bounds their pairs)
    run_with: Callable[[], float | None],
    run_without: Callable[[], float | None],
    ratio: float,
    *,
    least_ratio: float,
    are_neighbours: bool,
    has_time: Callable[[], bool],
    most: int = PAIRS,
) -> Comparison:
    """Compare two runs by pairs of neighbours, after a first comparison: A B, B A, A B.

    Args:
        run_with: Runs the config that recomputes; its samples/s, or ``None`` where it failed.
        run_without: The same for what it is compared with.
        ratio: Throughput with recompute over that without, as measured so far.
        least_ratio: What the ratio is held against.
        are_neighbours: Whether the two were measured one right after the other, so that they count as a pair.
        has_time: Whether there is time for another pair.
        most: Pairs at most.
    """
    ratios = [ratio] if are_neighbours else []
    found = compare([ratio], least_ratio)
    if not are_neighbours:
        found = replace(found, pairs=0)
    while not found.is_clear and _may_become_clear(ratios, least_ratio, most) and has_time():
        if len(ratios) % 2 == 0:
            recomputed, plain = run_with(), run_without()
        else:
            plain, recomputed = run_without(), run_with()
        if not recomputed or not plain:
            break
        ratios.append(recomputed / plain)
        found = compare(ratios, least_ratio)
    return found


def _may_become_clear(ratios: Sequence[float], least_ratio: float, most: int) -> bool:
    if len(ratios) < LEAST_TO_GIVE_UP:
        return True
    logs = [math.log(ratio) for ratio in ratios]
    distance = abs(statistics.fmean(logs) - math.log(least_ratio))
    return len(ratios) < most and distance >= TOO_NEAR * _half_interval(logs, most)


def has_enough_pairs(comparison: Comparison, *, has_time: bool) -> bool:
    """Tell whether it was not the time that ended a comparison."""
    return comparison.is_clear or comparison.pairs >= PAIRS or has_time


def compare(ratios: Sequence[float], least_ratio: float) -> Comparison:
    """Compare ratios of throughput, one of each pair, with a ratio that is to be reached.

    The ratio is their median, because one of several pairs may be spoilt. The interval is that of their mean. It is
    clear where the whole interval lies on one side.
    """
    if len(ratios) < LEAST_PAIRS:
        return Comparison(ratio=ratios[0], pairs=1, is_clear=False)
    logs = [math.log(ratio) for ratio in ratios]
    centre = statistics.fmean(logs)
    half = _half_interval(logs, len(logs))
    found = Comparison(
        ratio=statistics.median(ratios),
        low=math.exp(centre - half),
        high=math.exp(centre + half),
        pairs=len(ratios),
        is_clear=False,
    )
    return replace(found, is_clear=judge(found, least_ratio) is not Verdict.UNDECIDED)


def _half_interval(logs: Sequence[float], pairs: int) -> float:
    """Return half the interval of the mean of so many pairs, which scatter as these do."""
    return student_quantile(MISS, pairs - 1) * statistics.stdev(logs) / math.sqrt(pairs)
