import dataclasses
import itertools

import numpy as np

from autorecompute.search.surrogate import Regression

SWITCHES = 6
BELIEFS = Regression(
    means=np.array([1.0, *[0.0] * SWITCHES]), deviations=np.array([0.1, *[0.05] * SWITCHES]), own=0.005, noise=0.01
)
NINETY = 1.645
"""Standard deviations on each side of a 90 % interval."""


class World:
    """Configs whose values are drawn from the beliefs themselves, of which so many are measured."""

    def __init__(self, seed, *, measured, beliefs=BELIEFS):
        draw = np.random.default_rng(seed)
        configs = draw.permutation(list(itertools.product((0, 1), repeat=SWITCHES)))
        self.features = np.column_stack([np.ones(len(configs)), configs])
        self.beliefs, common = beliefs, beliefs.covariance(self.features, self.features)
        # Eigenvectors of equal values differ between processors, and so would what is drawn; a factor does not.
        common = common + 1e-10 * np.eye(len(configs))
        self.truth = draw.multivariate_normal(self.features @ beliefs.means, common, method="cholesky")
        self.truth += draw.normal(0, beliefs.own, len(configs))
        self.seen = self.features[:measured]
        self.values = self.truth[:measured] + draw.normal(0, beliefs.noise, measured)
        self.rest, self.unseen = self.features[measured:], self.truth[measured:]

    def learn(self, values=None):
        regression = dataclasses.replace(self.beliefs)
        regression.fit(self.seen, self.values if values is None else values)
        return regression


def test_a_measurement_that_was_disturbed_moves_next_to_nothing():
    """One that is three times too large costs what it would have told, and hardly shifts what is expected."""
    shifts = []
    for seed in range(12):
        world = World(seed, measured=14)
        disturbed = world.values.copy()
        disturbed[seed] *= 3
        shifts.append(np.abs(world.learn(disturbed).predict(world.rest)[0] - world.learn().predict(world.rest)[0]))
    assert np.mean(shifts) < BELIEFS.noise


def test_what_is_special_about_a_case_is_expected_of_its_like():
    beliefs = dataclasses.replace(BELIEFS, shared=0.05, reach=2.0, alike_from=1)
    misses, blind, inside = [], [], []
    for seed in range(100):
        world = World(seed, measured=20, beliefs=beliefs)
        means, deviations = world.learn().predict(world.rest)
        misses.append(np.abs(world.unseen - means).mean())
        inside.append(np.mean(np.abs(world.unseen - means) < NINETY * deviations))
        world.beliefs = dataclasses.replace(beliefs, shared=0.0)
        blind.append(np.abs(world.unseen - world.learn().predict(world.rest)[0]).mean())
    assert np.mean(misses) < 0.9 * np.mean(blind)
    assert 0.86 < np.mean(inside) < 0.94
