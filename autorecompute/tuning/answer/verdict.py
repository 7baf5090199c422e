"""Whether recompute pays: its winner beside the largest batch that fits without, in fresh processes that take turns.

Two processes that run minutes apart on a shared machine differ by more than the margin. So whole processes alternate,
and only the ratio of neighbours in time counts.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autorecompute.figures import Comparison, Figures
from autorecompute.measurement import Measurement, Outcome
from autorecompute.result import Best, Verdict
from autorecompute.tuning.budget import Task
from autorecompute.tuning.intervals import student_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.studies import Problem
    from autorecompute.trials import Bench
    from autorecompute.trials.bench import Effort
    from autorecompute.tuning.context import TuningContext, TuningSettings


MARGIN = 0.02
"""Throughputs closer than this share are as good as equal."""

NEAR = 0.15
"""Two pairs that are farther from the margin than this share, on the same side of it, are enough. One never is: what
slows one process of it alone looks like a large difference."""

PAIRS = 3
"""So many pairs are measured at most."""

MISS = 0.05
"""Chance that an interval lies on the wrong side of the margin."""


class PairedComparison:
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

    def run(self, ratio: float, *, are_neighbours: bool) -> Comparison:
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

    The ratio is their median, because one of three pairs may be spoilt. The interval is that of their mean.
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


ATTEMPTS = 3

CLEARLY_LARGER = 1.1
"""After a batch that fits, only one that is larger by this factor is worth another process."""


def measure_baseline_batch(  # noqa: PLR0913  (what its batch is guessed from, and whether there is time)
    bench: Bench,
    effort: Effort,
    problem: Problem,
    *,
    resting_bytes: int,
    peak_bytes: int | None,
    has_time: Callable[[], bool] = lambda: True,
) -> Measurement | None:
    """The largest batch found to fit without recompute, measured in a fresh process; ``None`` where none fits.

    Activations grow in proportion to the batch, so the first guess is near; each further one learns from the last.
    Where the baseline ran out of memory the first one is a mere half, and more than that may fit.

    Args:
        bench: Where it is measured.
        effort: How long.
        problem: The target batch, which does not fit without recompute, and the limit.
        resting_bytes: Memory without any activation.
        peak_bytes: Peak at the target batch without recompute; ``None`` where it ran out of memory.
        has_time: Whether there is time for another fresh process.
    """
    batch, limit_bytes = problem.batch, problem.limit_bytes
    guess = batch // 2 if peak_bytes is None else _largest(batch, limit_bytes, resting_bytes, peak_bytes)
    # A baseline whose steps fit, and whose whole process did not, lets the estimate reach the target itself.
    guess = min(guess, batch - 1)
    found, least, too_large = None, 1.0, batch
    for _ in range(ATTEMPTS):
        if guess < least or not has_time():
            break
        measurement = bench.watch({}, effort, guess)
        peak = measurement.peak_bytes
        if measurement.under(limit_bytes).outcome is Outcome.OK:
            found, least = measurement, guess * CLEARLY_LARGER
        else:
            too_large = guess
        fitting = guess // 2 if peak is None else _largest(guess, limit_bytes, resting_bytes, peak)
        guess = min(fitting, too_large - 1)
    return found


def _largest(batch: int, limit_bytes: int, resting_bytes: int, peak_bytes: int) -> int:
    bytes_per_sample = max(peak_bytes - resting_bytes, 1) / batch
    return int((limit_bytes - resting_bytes) / bytes_per_sample)


LEAST_RATIO = 1 / (1 + MARGIN)
"""Recompute is said not to pay below this: who asked for the batch is not sent back for less than the margin."""

PAIR = (Task.CONFIRMATION, Task.CONFIRMATION)
"""What a pair of fresh processes takes."""


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """The baseline batch and how the winner compares; both ``None`` without anything to compare, or time to."""

    baseline_batch: Figures | None = None
    comparison: Comparison | None = None


def compare_with_baseline_batch(
    context: TuningContext, best: Best, baseline: Trial | None, *, is_just_confirmed: bool
) -> BaselineComparison:
    """Measures the baseline batch, unless it is known, and compares, as far as there is time.

    Args:
        context: What the tuning works with.
        best: A confirmed config.
        baseline: The trial without recompute.
        is_just_confirmed: Whether its fresh process was the last thing that ran.
    """
    known = context.settings.baseline_batch
    baseline_batch = known or _find_baseline_batch(context, baseline)
    if baseline_batch is None or not baseline_batch.samples_per_second:
        return BaselineComparison(baseline_batch)
    comparison = PairedComparison(
        fresh_runs(context, context.emit(best.config), best.batch),
        fresh_runs(context, {}, baseline_batch.batch),
        least_ratio=LEAST_RATIO,
        # A tuning over several batches knows it, and compares with it once for all batches in the end.
        has_time=lambda: known is None and context.budget.allows(*PAIR),
    )
    ratio = best.samples_per_second / baseline_batch.samples_per_second
    are_neighbours = known is None and is_just_confirmed
    return BaselineComparison(baseline_batch, comparison.run(ratio, are_neighbours=are_neighbours))


def _find_baseline_batch(context: TuningContext, baseline: Trial | None) -> Figures | None:
    if context.budget.allows(Task.CONFIRMATION):
        context.note("measuring the largest batch that fits without recompute")
    found = measure_baseline_batch(
        context.bench,
        context.settings.effort,
        context.problem,
        resting_bytes=context.detection.resting_bytes,
        peak_bytes=baseline.measurement.peak_bytes if baseline else None,
        has_time=lambda: context.budget.allows(Task.CONFIRMATION),
    )
    return figures_of(found) if found is not None else None


def fresh_runs(context: TuningContext, environment: dict[str, str], batch: int | None) -> Callable[[], float | None]:
    """Runs a batch in a fresh process under this environment; gives its samples/s, or ``None`` where it failed."""
    way = "with" if environment else "without"

    def run() -> float | None:
        context.note(f"comparing in fresh processes: batch {batch} {way} recompute")
        measurement = context.watch(environment, batch)
        return measurement.samples_per_second if measurement.outcome is Outcome.OK else None

    return run


def needs_baseline_batch(best: Best | None, settings: TuningSettings) -> bool:
    """Whether this winner has to be compared with a smaller batch."""
    return best is not None and not best.config.is_none and settings.batch is not None


def judge_recompute(best: Best | None, comparison: Comparison | None) -> Verdict:
    """What the winner and the baseline batch say about recompute."""
    if best is None:
        return Verdict.NO_FIT
    if best.config.is_none:
        return Verdict.NOT_NEEDED
    # Processes that ran minutes apart are never compared.
    if comparison is not None and comparison.pairs and comparison.ratio < LEAST_RATIO:
        return Verdict.DOES_NOT_PAY
    return Verdict.RECOMPUTE_PAYS


def figures_of(measurement: Measurement) -> Figures:
    """The figures of a fresh process."""
    return Figures(
        outcome=measurement.outcome,
        samples_per_second=measurement.samples_per_second,
        peak_bytes=measurement.peak_bytes,
        batch=measurement.batch,
    )
