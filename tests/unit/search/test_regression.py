import dataclasses
import itertools

import numpy as np
import pytest

from autorecompute.search.regression import Beliefs, Regression

SWITCHES = 6
BELIEFS = Beliefs(
    means=np.array([1.0, *[0.0] * SWITCHES]), deviations=np.array([0.1, *[0.05] * SWITCHES]), own=0.005, noise=0.01
)
NINETY = 1.645
"""Standard deviations on each side of a 90 % interval."""


class World:
    """Configs whose values are drawn from the beliefs themselves, or from worse.

    Args:
        seed: What to draw.
        measured: How many configs are measured.
        worse: How many times as far own and noise are off as is believed.
        beliefs: What the values are drawn from.
    """

    def __init__(self, seed, *, measured=12, worse=1.0, beliefs=BELIEFS):
        draw = np.random.default_rng(seed)
        configs = draw.permutation(list(itertools.product((0, 1), repeat=SWITCHES)))
        self.features = np.column_stack([np.ones(len(configs)), configs])
        self.beliefs, common = beliefs, beliefs.covariance(self.features, self.features)
        # Eigenvectors of equal values differ between processors, and so would what is drawn; a factor does not.
        common = common + 1e-10 * np.eye(len(configs))
        self.truth = draw.multivariate_normal(self.features @ beliefs.means, common, method="cholesky")
        self.truth += worse * draw.normal(0, beliefs.own, len(configs))
        self.seen = self.features[:measured]
        self.values = self.truth[:measured] + worse * draw.normal(0, beliefs.noise, measured)
        self.rest, self.unseen = self.features[measured:], self.truth[measured:]

    def learn(self, values=None, **fields):
        return Regression(self.beliefs, self.seen, self.values if values is None else values, **fields)

    def coverage(self):
        means, deviations = self.learn().predict(self.rest)
        return np.mean(np.abs(self.unseen - means) < NINETY * deviations)


def test_nothing_measured_leaves_the_beliefs():
    learned = Regression(BELIEFS, np.empty((0, 1 + SWITCHES)), np.empty(0))
    none, two = np.array([1, 0, 0, 0, 0, 0, 0.0]), np.array([1, 1, 0, 0, 1, 0, 0.0])
    means, deviations = learned.predict(np.array([none, two]))
    assert means == pytest.approx([1, 1])
    assert deviations**2 == pytest.approx([0.1**2 + 0.005**2, 0.1**2 + 2 * 0.05**2 + 0.005**2])


def test_effects_are_told_apart():
    draw = np.random.default_rng(0)
    effects = np.array([1.1, 0.08, -0.02, 0.05, 0.0, 0.11, 0.03])
    seen = np.column_stack([np.ones(40), draw.integers(0, 2, size=(40, SWITCHES))])
    learned = Regression(BELIEFS, seen, seen @ effects + draw.normal(0, 0.005, 40))
    alone = np.column_stack([np.ones(SWITCHES), np.eye(SWITCHES)])
    assert learned.predict(alone)[0] == pytest.approx(alone @ effects, abs=0.01)


def test_a_measurement_that_was_disturbed_moves_next_to_nothing():
    """One that is three times too large costs what it would have told, and hardly shifts what is expected."""
    shifts = []
    for seed in range(12):
        world = World(seed, measured=14)
        disturbed = world.values.copy()
        disturbed[seed] *= 3
        shifts.append(np.abs(world.learn(disturbed).predict(world.rest)[0] - world.learn().predict(world.rest)[0]))
    assert np.mean(shifts) < BELIEFS.noise


def test_ninety_of_a_hundred_lie_in_their_intervals():
    assert 0.86 < np.mean([World(seed, measured=40).coverage() for seed in range(150)]) < 0.94


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


def test_the_scale_is_that_of_the_noise():
    scales = [np.mean([World(seed, measured=25, worse=w).learn().scale for seed in range(30)]) for w in (0.3, 1, 3)]
    assert scales[0] < 0.9
    assert scales[1] == pytest.approx(1, abs=0.15)
    assert scales[2] > 1.8


def test_a_measurement_that_is_worth_less_teaches_less():
    world = World(1)
    believed = world.rest @ BELIEFS.means
    sure, unsure = (np.abs(world.learn(extra_noise=extra).predict(world.rest)[0] - believed) for extra in (0.0, 1.0))
    assert unsure.mean() < 0.2 * sure.mean()


def test_a_case_settles_between_its_measurement_and_what_was_expected():
    world = World(2)
    case, value = world.rest[0], 2.0

    def learn(**changes):
        return Regression(dataclasses.replace(BELIEFS, **changes), world.seen, world.values)

    def settle(value, **changes):
        return learn(**changes).settle(case, value)

    expected = learn(own=BELIEFS.noise).predict(case[None])[0][0]
    assert settle(value, own=1e-9) == pytest.approx(expected, abs=0.01)
    assert settle(value, noise=1e-9) == pytest.approx(value, abs=0.01)
    near = expected + BELIEFS.noise  # as much is special about it, in the mean, as is luck
    assert settle(near, own=BELIEFS.noise) == pytest.approx(expected + BELIEFS.noise / 2, rel=1e-6)
    assert settle(value, own=BELIEFS.noise) == pytest.approx(expected, abs=BELIEFS.noise)
