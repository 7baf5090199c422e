"""What throughput is relative to: no recompute, measured again and again as the machine's mood changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.measurement import Outcome
from autorecompute.plans import Config

if TYPE_CHECKING:
    from autorecompute.measurement import Measurement
    from autorecompute.trials import Bench
    from autorecompute.trials.bench import Effort

LONGEST_INTERVAL = 8
"""Trials between two measurements of the reference on a machine that keeps its pace."""

AGREEMENT = 0.05
"""Two measurements of the reference agree when they differ by no more than this share."""

SLOWEST_PLAUSIBLE, FASTEST_PLAUSIBLE = 0.6, 1.1
"""Throughputs that a config can have beside the reference: at most the forward pass runs twice, nothing gets faster."""


class Reference:
    """Step time without recompute, in the last few minutes.

    A machine shared with others slows down and recovers by a factor within minutes. So the reference is measured
    before every trial at first, half as often each time it agrees with the last one, and before every trial again once
    it moved.

    Args:
        bench: Where it is measured.
        effort: How long.
        is_known_to_fail: Whether an earlier session saw that the batch does not run without recompute.
    """

    def __init__(self, bench: Bench, effort: Effort, *, is_known_to_fail: bool) -> None:
        self._bench, self._effort = bench, effort
        self._can_run = not is_known_to_fail
        self._seconds: float | None = None
        self._is_noted = False
        self._interval, self._age = 1, 0

    def first(self) -> Measurement | None:
        """What comes of it here, measured now; ``None`` where that is known."""
        if self._is_noted or not self._can_run:
            return None
        measurement = self._bench.measure(Config(), self._effort)
        self.note(measurement)
        return measurement

    def seconds(self) -> float | None:
        """Median step without recompute, measured now if it is due; ``None`` where it cannot run."""
        if self._can_run and (self._seconds is None or self._age >= self._interval):
            self.note(self._bench.measure(Config(), self._effort))
        self._age += 1
        return self._seconds

    def seconds_beside(self, measurement: Measurement) -> float | None:
        """The reference for a config that was just measured, measured anew where the two do not look of one time."""
        step = measurement.median_step_seconds
        if step and self._seconds and not SLOWEST_PLAUSIBLE <= self._seconds / step <= FASTEST_PLAUSIBLE:
            self._age = self._interval
            self.seconds()
        return self._seconds

    def note(self, measurement: Measurement) -> None:
        """Takes a measurement without recompute."""
        self._is_noted = True
        before, self._seconds = self._seconds, measurement.median_step_seconds
        self._can_run = measurement.outcome is not Outcome.OOM
        agrees = before and self._seconds and abs(self._seconds / before - 1) <= AGREEMENT
        self._interval = min(2 * self._interval, LONGEST_INTERVAL) if agrees else 1
        self._age = 0
