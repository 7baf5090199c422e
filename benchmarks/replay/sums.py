"""What a recorded config in plain PyTorch truly takes: a sum of what each choice adds, of pairs, and of its own rest.

There are too many configs to record each of them often. What a choice adds to a step grows with its count; two choices
that are on in the same blocks may share work. Both are fitted to all recordings together, and what the recordings of a
config differ from that in the mean counts as far as it is more than noise would make of it (a mixed model: its rest is
the best linear unbiased prediction).
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear

from robust import doubt, weigh


@dataclass(frozen=True, slots=True)
class Sums:
    """What was fitted.

    Attributes:
        recorded: The step time of each measured config, as a share of that without recompute.
        effects: What the choices and pairs of choices add to it.
    """

    recorded: dict
    effects: np.ndarray

    def ratio(self, shares):
        """The same of any config, by the share of the blocks that each choice is on in."""
        return float(1 + np.hstack([shares, _overlaps(shares[None])[0]]) @ self.effects)


def fit_sums(table):
    """What all recordings together say of every config."""
    configs = [config for config, found in table.recordings.items() for _ in found]
    ratios = np.array([_ratio(recording) for found in table.recordings.values() for recording in found])
    shares = table.candidates.shares[[table.candidates.places[config] for config in configs]].astype(float)
    pairs = _overlaps(shares)
    weights = weigh(shares, ratios - 1)
    design = np.hstack([shares, pairs])
    ridge = np.zeros(design.shape[1])
    ridge[shares.shape[1] :] = doubt(design, ratios - 1, weights, pairs.shape[1])
    effects = _fit(design, ratios - 1, weights, ridge, shares.shape[1])
    fitted = 1 + design @ effects
    rests = _rests(configs, ratios - fitted)
    recorded = {config: float(found) + rests[config] for config, found in zip(configs, fitted, strict=True)}
    return Sums(recorded, effects)


def _fit(design, times, weights, ridge, choices):
    """The effects that miss least; none of the choices makes a step shorter, as what noise says of a cheap one may."""
    root = np.sqrt(weights)
    rows = np.vstack([design * root[:, None], np.diag(np.sqrt(ridge))])
    least = np.where(np.arange(design.shape[1]) < choices, 0.0, -np.inf)
    return lsq_linear(rows, np.concatenate([times * root, np.zeros(len(ridge))]), (least, np.inf)).x


def _ratio(recording):
    return statistics.mean(recording.seconds) / recording.reference_seconds


def _overlaps(shares):
    """At which share of the blocks both choices of each pair are on."""
    pairs = itertools.combinations(range(shares.shape[1]), 2)
    return np.column_stack([np.minimum(shares[:, one], shares[:, other]) for one, other in pairs])


def _rests(configs, errors):
    """What is special about each config, as far as its recordings bear it out."""
    by_config = {}
    for config, error in zip(configs, errors, strict=True):
        by_config.setdefault(config, []).append(float(error))
    repeated = [found for found in by_config.values() if len(found) > 1]
    noise = statistics.mean(statistics.variance(found) for found in repeated) if repeated else float(np.var(errors))
    own = max(float(np.var(errors)) - noise, 0.0)
    return {
        config: statistics.mean(found) * own / (own + noise / len(found)) if own else 0.0
        for config, found in by_config.items()
    }
