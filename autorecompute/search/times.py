"""What recompute costs in time, learnt from the trials."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from autorecompute.plans import Level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config, Plan, Space

EXPECTED_COST = 0.02
"""What a plan adds to the step, as a share of it, as long as no trial tells."""

PASSES, RELAXATION = 40, 0.3
"""How often the fit goes over the trials, and how far it goes towards each: noise must not pull it to and fro."""


class TimeModel:
    """Step time as a sum: the step without recompute, and what each plan adds to it.

    All times are relative to the fastest trial's.

    Args:
        space: The plans.
        trials: What was measured.
    """

    def __init__(self, space: Space, trials: Sequence[Trial]) -> None:
        self._space = space
        timed = [trial for trial in trials if trial.measurement.median_step_seconds]
        # Beside a reference of the same minutes times can be compared over hours; without one, only as they are.
        self._has_reference = all(trial.relative_throughput for trial in timed)
        self._fastest = min(map(self._seconds, timed), default=1.0)
        self._base, self._costs = 1.0, dict.fromkeys(space.plans, EXPECTED_COST)
        self._learn([trial for trial in timed if trial.config.level is Level.CHOSEN])

    def measured(self, trial: Trial) -> float:
        """The step time of a trial that has one."""
        return self._seconds(trial) / self._fastest

    def forecast(self, config: Config) -> float:
        """The step time to expect of a config."""
        return self._base + sum(self._costs[plan] for plan in self._space.plans_of(config))

    def cost(self, plan: Plan) -> float:
        """What the plan adds to the step time; below 0 where it is faster to recompute."""
        return self._costs[plan]

    def _seconds(self, trial: Trial) -> float:
        seconds = trial.measurement.median_step_seconds
        assert seconds is not None, "a timed trial has a step time"
        return seconds / trial.reference_seconds if self._has_reference and trial.reference_seconds else seconds

    def _learn(self, trials: Sequence[Trial]) -> None:
        """Fits the costs by Kaczmarz's method, which leaves what no trial can tell as it was expected."""
        sums = [(self._space.plans_of(trial.config), self.measured(trial)) for trial in trials]
        if sums:
            self._base = statistics.mean(time / (1 + EXPECTED_COST * len(plans)) for plans, time in sums)
        for _ in range(PASSES):
            for plans, time in sums:
                error = time - self._base - sum(self._costs[plan] for plan in plans)
                share = RELAXATION * error / (1 + len(plans))
                self._base += share
                self._costs |= {plan: self._costs[plan] + share for plan in plans}
