"""What was expected of each trial beside what was measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.ranges import Count, Ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial


ROUGH = 0.05
"""Where peaks are off by more than this share in the median, what was measured decides, and people are told so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How far off the predictions of a study were, made before each trial.

    Attributes:
        trials: How many trials have both a predicted and a measured peak.
        peak_median_error: By which share the peaks were off in the median.
        peak_worst_error: The same at worst.
        within_interval: How many peaks were within their 90 % interval.
        step_median_error: By which share the step times were off in the median; ``None`` without a reference.
        steps: How many trials have both a predicted and a measured step time.
        steps_within_interval: How many step times were within their 90 % interval.
    """

    trials: Count
    peak_median_error: Ratio
    peak_worst_error: Ratio
    within_interval: Count
    step_median_error: Ratio | None
    steps: Count
    steps_within_interval: Count

    @property
    def sentence(self) -> str:
        """Return the same in a line."""
        steps = ""
        if self.step_median_error is not None:
            held = f"{self.steps_within_interval} of {self.steps} within theirs"
            steps = f"; step times {self.step_median_error:.1%} off in the median, {held}"
        is_rough = self.peak_median_error > ROUGH
        rough = f"; peaks are more than {ROUGH:.0%} off, so the search relied on its trials" if is_rough else ""
        return (
            f"predicted before each trial: peaks {self.peak_median_error:.1%} off in the median and "
            f"{self.peak_worst_error:.1%} at worst, {self.within_interval} of {self.trials} within their 90 % "
            f"interval{steps}{rough}"
        )


def expected_step_seconds(trial: Trial) -> float | None:
    """Return the step time that was expected of a trial.

    ``None`` where none was, or relative to nothing that was measured.
    """
    step = trial.prediction.step if trial.prediction is not None else None
    return None if step is None or trial.reference_seconds is None else step * trial.reference_seconds


def peak_error(trial: Trial) -> float | None:
    """Return the share by which the measured peak was above the expected one; ``None`` without both."""
    peak = trial.measurement.peak_bytes
    return peak / trial.prediction.peak_bytes - 1 if peak is not None and trial.prediction is not None else None


def step_error(trial: Trial) -> float | None:
    """Return the share by which the measured step was longer than expected; ``None`` without both or a reference."""
    relative = trial.relative_throughput
    step = trial.prediction.step if trial.prediction is not None else None
    return 1 / relative / step - 1 if relative and step else None


def summarise(trials: Sequence[Trial]) -> Summary | None:
    """Return how far off the predictions were; ``None`` where nothing was predicted."""
    peaks = [abs(error) for trial in trials if (error := peak_error(trial)) is not None]
    steps = [abs(error) for trial in trials if (error := step_error(trial)) is not None]
    if not peaks:
        return None
    return Summary(
        trials=len(peaks),
        peak_median_error=statistics.median(peaks),
        peak_worst_error=max(peaks),
        within_interval=sum(_holds(trial) for trial in trials),
        step_median_error=statistics.median(steps) if steps else None,
        steps=len(steps),
        steps_within_interval=sum(_holds_step(trial) for trial in trials),
    )


def describe_predictions(trials: Sequence[Trial]) -> str:
    """Return how far off the predictions of a study were, in a line; empty where nothing was predicted."""
    summary = summarise(trials)
    return summary.sentence if summary is not None else ""


def _holds(trial: Trial) -> bool:
    peak, prediction = trial.measurement.peak_bytes, trial.prediction
    return peak is not None and prediction is not None and prediction.peak_low <= peak <= prediction.peak_high


def _holds_step(trial: Trial) -> bool:
    relative, prediction = trial.relative_throughput, trial.prediction
    if not relative or prediction is None or prediction.step_low is None or prediction.step_high is None:
        return False
    return prediction.step_low <= 1 / relative <= prediction.step_high
