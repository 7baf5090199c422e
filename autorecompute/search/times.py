"""What recompute costs in time, learnt from the trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autorecompute.figures import comparable_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config, Plan, Space

EXPECTED_COST = 0.02
"""What a plan adds to the step, as a share of it, as long as no trial tells."""

COST_SPREAD = 0.02
"""How far a plan's cost is from the expected one, as a rule."""

COST_SPREAD_OF_COUNTED = 0.2
"""The same of a plan that counts: such plans recompute whole blocks, all of which take a third of a step."""

LEAST_NOISE = 0.004**2
"""Variance of a step time on the quietest machine, as a share of it."""


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
        steps = comparable_steps([trial.measurement for trial in timed])
        self._steps = {trial.number: seconds for trial, seconds in zip(timed, steps, strict=True) if seconds}
        self._fastest = min(map(self._seconds, timed), default=1.0)
        self._base, self._costs = 1.0, dict.fromkeys(space.plans, EXPECTED_COST)
        self._learn([trial for trial in timed if space.is_mix(trial.config)])

    def measured(self, trial: Trial) -> float:
        """Return the step time of a trial that has one."""
        return self._seconds(trial) / self._fastest

    def expected(self, trial: Trial) -> float:
        """Return the step time of a trial without the luck of its measurement: the fastest of many was lucky."""
        return max(self.measured(trial), self.forecast(trial.config))

    def forecast(self, config: Config) -> float:
        """Return the step time to expect of a config."""
        return self._base + sum(
            self._costs[plan] * self._space.share(config, plan) for plan in self._space.plans_of(config)
        )

    def cost(self, plan: Plan) -> float:
        """Return what the plan adds to the step time; below 0 where it is faster to recompute."""
        return self._costs[plan]

    def _seconds(self, trial: Trial) -> float:
        relative = trial.relative_throughput
        return 1 / relative if self._has_reference and relative else self._steps[trial.number]

    def _learn(self, trials: Sequence[Trial]) -> None:
        """Fit the costs by ridge regression, which leaves what no trial can tell as it was expected.

        How far the trials may pull a cost away from there is decided by how well the costs explain them: on a noisy
        machine the trials say less. It is the posterior mean under normal noise and a normal prior (empirical Bayes).
        """
        if not trials:
            return
        times = np.array([self.measured(trial) for trial in trials])
        ones = [[1.0, *(self._space.share(trial.config, plan) for plan in self._space.plans)] for trial in trials]
        design = np.array(ones, dtype=float)
        spreads = [COST_SPREAD_OF_COUNTED if plan.counts else COST_SPREAD for plan in self._space.plans]
        costs = _ridge(design, times, LEAST_NOISE, spreads)
        spare = max(len(trials) - len(costs), 1)
        noise = max(float(np.square(times - design @ costs).sum()) / spare, LEAST_NOISE)
        base, *found = map(float, _ridge(design, times, noise, spreads))
        self._base, self._costs = base, dict(zip(self._space.plans, found, strict=True))


def _ridge(design: np.ndarray, times: np.ndarray, noise: float, spreads: Sequence[float]) -> np.ndarray:
    """Return the base and the costs that explain the times best, given the variance of their noise."""
    weights = np.array([0.0, *(noise / spread**2 for spread in spreads)])
    expected = np.full(design.shape[1], EXPECTED_COST)
    expected[0] = 0.0
    left = design.T @ design + np.diag(weights)
    return np.linalg.solve(left, design.T @ times + weights * expected)
