"""Bayesian linear regression: what a few noisy measurements say about a sum of effects, and how surely."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

PRIOR_WEIGHT = 4.0
"""How many measurements the assumed noise counts for against what is seen."""

FREEDOM = 3.0
"""Degrees of freedom of Student's noise: the fewer, the farther off a measurement may lie without telling anything."""

FIRST_TRUST = 0.01
"""Trust in every measurement in the first fit, which so shows what lies far off the beliefs."""

KEPT = 0.76
"""What that trust leaves, on average, of the square of noise that is normal: without it the scale would come out too
small. The mean of ``(FREEDOM + 1) * z**2 / (FREEDOM + z**2)``."""

ROUNDS = 6
"""Fits, each with less trust in what was far off the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """What is assumed before anything is measured, all of it normal and independent.

    Attributes:
        means: Expected effect of each feature.
        deviations: How far effects are from that, as a rule.
        own: Standard deviation of what is special about one case, and comes again when it is measured again.
        noise: Standard deviation of one measurement.
    """

    means: np.ndarray
    deviations: np.ndarray
    own: float
    noise: float


class Regression:
    """The posterior of ``value = features @ effects + own + noise``.

    A measurement that lies far from all others is believed less, as under Student's noise: a shared machine slows down
    by a factor now and then. How far everything else may be off is scaled by how far the measurements are off (a
    normal-inverse-gamma prior), so that beliefs in too little noise do not stay sure of themselves. Formulas: Gelman
    et al., Bayesian Data Analysis, chapters 14 and 17.

    Args:
        beliefs: What is assumed.
        features: One line for each measurement.
        values: What was measured.
        extra_noise: Standard deviation of each measurement beyond the common noise.
    """

    def __init__(
        self, beliefs: Beliefs, features: np.ndarray, values: np.ndarray, extra_noise: np.ndarray | float = 0.0
    ) -> None:
        self._beliefs = beliefs
        variance = beliefs.own**2 + beliefs.noise**2 + np.square(extra_noise) * np.ones(len(values))
        # Little trust at first: what was believed shows which of a few measurements is the one that lies far off.
        trust = np.full(len(values), FIRST_TRUST)
        self.scale = 1.0
        for _ in range(ROUNDS):
            squares = self._fit(features, values, variance / trust)
            surprise = squares / (variance * self.scale**2)
            trust = (FREEDOM + 1) / (FREEDOM + surprise)

    @property
    def noise(self) -> float:
        """Standard deviation of one measurement beside the true value."""
        return self.scale * self._beliefs.noise

    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of cases that were not measured, without the noise of a measurement."""
        spread = np.einsum("ij,ij->i", features @ self._covariance, features)
        deviations = self.scale * np.sqrt(np.maximum(spread, 0) + self._beliefs.own**2)
        return features @ self._effects, deviations

    def settle(self, features: np.ndarray, value: float, own: float = 0.0) -> float:
        """What a case that was measured should really be: a measurement that stands out was partly luck.

        Args:
            features: Those of the case.
            value: What was measured.
            own: Standard deviation of what is special about it, beyond what is believed of all.
        """
        mean = float(features @ self._effects)
        special, noise = self._beliefs.own**2 + own**2, self._beliefs.noise**2
        surprise = (value - mean) ** 2 / (special + noise)
        trust = min((FREEDOM + 1) / (FREEDOM + surprise), 1.0)
        return mean + (value - mean) * special / (special + noise / trust)

    def _fit(self, features: np.ndarray, values: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Finds effects and scale, and gives back the square of what each measurement is off by."""
        beliefs = self._beliefs
        weighted = features / variance[:, None]
        self._covariance = np.linalg.inv(np.diag(1 / np.square(beliefs.deviations)) + weighted.T @ features)
        misfit = values - features @ beliefs.means
        explained = weighted.T @ misfit
        self._effects = beliefs.means + self._covariance @ explained
        total = float(np.sum(misfit**2 / variance) - explained @ self._covariance @ explained) / KEPT
        self.scale = math.sqrt((PRIOR_WEIGHT + max(total, 0.0)) / (PRIOR_WEIGHT + len(values)))
        residual: np.ndarray = np.square(values - features @ self._effects)
        return residual
