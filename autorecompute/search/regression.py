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
        shared: Standard deviation of what is special about a case and about those that are like it.
        reach: How far cases are alike: at this square of the distance between two, in the features from ``alike_from``
            on, they have 1/e of it in common.
        alike_from: The first of the features by which cases are like each other.
    """

    means: np.ndarray
    deviations: np.ndarray
    own: float
    noise: float
    shared: float = 0.0
    reach: float = 1.0
    alike_from: int = 0

    def covariance(self, cases: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return the covariance of what cases (lines) and others (columns) should be, but for what is their own."""
        found: np.ndarray = (cases * np.square(self.deviations)) @ others.T
        if self.shared:
            left, right = cases[:, self.alike_from :], others[:, self.alike_from :]
            squares = np.square(left).sum(axis=1)[:, None] + np.square(right).sum(axis=1) - 2 * left @ right.T
            found += self.shared**2 * np.exp(-squares / self.reach)
        return found

    def variance(self, cases: np.ndarray) -> np.ndarray:
        """Return the variance of what cases should be, but for what is their own."""
        found: np.ndarray = np.square(cases) @ np.square(self.deviations) + self.shared**2
        return found


class Regression:
    """The posterior of ``value = features @ effects + shared + own + noise``.

    It is a Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2 and
    2.7). A measurement that lies far from all others is believed less, as under Student's noise: a shared machine slows
    down by a factor now and then. How far everything else may be off is scaled by how far the measurements are off (a
    normal-inverse-gamma prior), so that beliefs in too little noise do not stay sure of themselves. Formulas: Gelman
    et al., Bayesian Data Analysis, chapters 14 and 17.

    Args:
        beliefs: What is assumed.
        features: One line for each measurement.
        values: What was measured.
        extra_noise: Standard deviation of each measurement beyond the common noise.
        apart: Covariance of what measurements have in common with each other and with no case that is asked about.
    """

    def __init__(
        self,
        beliefs: Beliefs,
        features: np.ndarray,
        values: np.ndarray,
        extra_noise: np.ndarray | float = 0.0,
        apart: np.ndarray | float = 0.0,
    ) -> None:
        self._beliefs, self._features, self._apart = beliefs, features, apart
        variance = beliefs.own**2 + beliefs.noise**2 + np.square(extra_noise) * np.ones(len(values))
        # Little trust at first: what was believed shows which of a few measurements is the one that lies far off.
        trust = np.full(len(values), FIRST_TRUST)
        self.scale = 1.0
        for _ in range(ROUNDS):
            squares = self._fit(values, variance / trust)
            surprise = squares / (variance * self.scale**2)
            trust = (FREEDOM + 1) / (FREEDOM + surprise)

    @property
    def noise(self) -> float:
        """Standard deviation of one measurement beside the true value."""
        return self.scale * self._beliefs.noise

    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of cases that were not measured, without the noise of a measurement."""
        seen = self._beliefs.covariance(features, self._features)
        spread = self._beliefs.variance(features) - np.einsum("ij,ij->i", seen @ self._precision, seen)
        deviations = self.scale * np.sqrt(np.maximum(spread, 0) + self._beliefs.own**2)
        return features @ self._beliefs.means + seen @ self._weights, deviations

    def settle(self, features: np.ndarray, value: float, own: float = 0.0) -> float:
        """Return what a case that was measured should really be: a measurement that stands out was partly luck.

        Args:
            features: Those of the case.
            value: What was measured.
            own: Standard deviation of what is special about it, beyond what is believed of all.
        """
        mean = float(self.predict(features[None])[0][0])
        special, noise = self._beliefs.own**2 + own**2, self._beliefs.noise**2
        surprise = (value - mean) ** 2 / (special + noise)
        trust = min((FREEDOM + 1) / (FREEDOM + surprise), 1.0)
        return mean + (value - mean) * special / (special + noise / trust)

    def _fit(self, values: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Find weights and scale, and give back the square of what each measurement is off by."""
        beliefs, count = self._beliefs, len(values)
        common = beliefs.covariance(self._features, self._features) + self._apart
        misfit = values - self._features @ beliefs.means
        self._precision = np.linalg.inv(common + np.diag(variance))
        self._weights = self._precision @ misfit
        total = float(misfit @ self._weights) / KEPT
        self.scale = math.sqrt((PRIOR_WEIGHT + max(total, 0.0)) / (PRIOR_WEIGHT + count))
        residual: np.ndarray = np.square(misfit - common @ self._weights)
        return residual
