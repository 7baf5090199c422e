"""Fits that a few disturbed measurements do not spoil, and how far small effects are to be believed."""

from __future__ import annotations

import numpy as np

HUBER = 1.345
"""Errors beyond so many deviations count less, as usual: 95 % as exact as least squares under normal noise."""

NO_EFFECT = 1e-4
"""Effects that deviate by no more are as good as none."""

DEVIATION = 1.4826
"""A normal deviation, in median absolute errors."""

ROUNDS = 50


def weigh(design, times):
    """How much each time counts: those that a fit without pairs misses by far count less."""
    weights = np.ones(len(times))
    for _ in range(ROUNDS):
        root = np.sqrt(weights)
        errors = times - design @ np.linalg.lstsq(design * root[:, None], times * root, rcond=None)[0]
        scale = DEVIATION * np.median(np.abs(errors)) or 1.0
        weights = np.minimum(1.0, HUBER * scale / np.maximum(np.abs(errors), 1e-12))
    return weights


def doubt(design, times, weights, count):
    """How strongly the last effects, those of pairs, are drawn to 0: the variance of the noise over theirs.

    Theirs is what the effects that fit best vary beyond their own errors (empirical Bayes).
    """
    weighted = design.T * weights
    inverse = np.linalg.pinv(weighted @ design)
    effects = inverse @ weighted @ times
    noise = float(weights @ np.square(times - design @ effects)) / max(len(times) - design.shape[1], 1)
    beyond = float(np.mean(np.square(effects[-count:]) - noise * np.diag(inverse)[-count:]))
    return noise / max(beyond, NO_EFFECT**2)
