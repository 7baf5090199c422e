"""Whether recompute pays at a target batch: its winner beside the largest batch that fits without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.figures import Comparison, Figures
from autorecompute.measurement import Measurement, Outcome
from autorecompute.result import Best, Verdict
from autorecompute.tuning.answer.duel import MARGIN, Duel
from autorecompute.tuning.answer.rival import measure_rival
from autorecompute.tuning.budget import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.measurement import Detection, Trial
    from autorecompute.studies import Problem
    from autorecompute.tuning.budget import Budget
    from autorecompute.tuning.settings import TuningSettings, Workplace

LEAST_RATIO = 1 / (1 + MARGIN)
"""Recompute is said not to pay below this: who asked for the batch is not sent back for less than the margin."""

PAIR = (Task.CONFIRMATION, Task.CONFIRMATION)
"""What a pair of fresh processes takes."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """The rival and how the winner compares; both ``None`` where there is nothing to compare, or no time to."""

    rival: Figures | None = None
    comparison: Comparison | None = None


class Scales:
    """Holds a winner against the largest batch that fits without recompute.

    Args:
        place: What it works with.
        budget: The time there is.
        detection: What the job is.
        problem: What has to be solved.
    """

    def __init__(self, place: Workplace, budget: Budget, detection: Detection, problem: Problem) -> None:
        self._place, self._budget, self._detection, self._problem = place, budget, detection, problem

    def weigh(self, best: Best, baseline: Trial | None, *, is_just_confirmed: bool) -> Weighed:
        """Measures the rival, unless it is known, and compares, as far as there is time.

        Args:
            best: A confirmed config that needs a rival.
            baseline: The trial without recompute.
            is_just_confirmed: Whether its fresh process was the last thing that ran.
        """
        known = self._place.settings.rival
        rival = known or self._measure_rival(baseline)
        if rival is None or not rival.samples_per_second:
            return Weighed(rival)
        duel = Duel(
            runner(self._place, self._place.emit(best.config, self._detection.versions), best.batch),
            runner(self._place, {}, rival.batch),
            least_ratio=LEAST_RATIO,
            # Whoever knows the rival compares with it in the end, once for all batches.
            has_time=lambda: known is None and self._budget.allows(*PAIR),
        )
        ratio = best.samples_per_second / rival.samples_per_second
        return Weighed(rival, duel.fight(ratio, are_neighbours=known is None and is_just_confirmed))

    def _measure_rival(self, baseline: Trial | None) -> Figures | None:
        if self._budget.allows(Task.CONFIRMATION):
            self._place.progress.note("measuring the largest batch that fits without recompute")
        rival = measure_rival(
            self._place.bench,
            self._place.settings.effort,
            self._problem,
            resting_bytes=self._detection.resting_bytes,
            peak_bytes=baseline.measurement.peak_bytes if baseline else None,
            has_time=lambda: self._budget.allows(Task.CONFIRMATION),
        )
        return figures_of(rival) if rival is not None else None


def runner(place: Workplace, environment: dict[str, str], batch: int | None) -> Callable[[], float | None]:
    """Runs a batch in a fresh process under this environment; gives its samples/s, or ``None`` where it failed."""
    way = "with" if environment else "without"

    def run() -> float | None:
        place.progress.note(f"comparing in fresh processes: batch {batch} {way} recompute")
        measurement = place.bench.watch(environment, place.settings.effort, batch)
        return measurement.samples_per_second if measurement.outcome is Outcome.OK else None

    return run


def needs_rival(best: Best | None, settings: TuningSettings) -> bool:
    """Whether this winner has to be compared with a smaller batch."""
    return best is not None and not best.config.is_none and settings.batch is not None


def judge_recompute(best: Best | None, comparison: Comparison | None) -> Verdict:
    """What the winner and its rival say about recompute."""
    if best is None:
        return Verdict.NO_FIT
    if best.config.is_none:
        return Verdict.NOT_NEEDED
    # Processes that ran minutes apart do not tell.
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
