import dataclasses
import itertools

import numpy as np
import pytest

from autorecompute.plans import Config
from autorecompute.search.candidates import Candidates, choices_of
from autorecompute.search.surrogate import Regression, Surrogate

BATCH = 16
NINETY = 1.645


@pytest.fixture
def bench(make_profiled):
    return make_profiled(noise=0.0).limit_to(0.4)


def candidates_of(bench):
    return Candidates(bench.space, bench.memory.simulator({"batch": BATCH}, choices_of(bench.space)))


@pytest.fixture
def candidates(bench):
    return candidates_of(bench)


def learn_from(trials, bench, candidates, **fields):
    fields = {"limit_bytes": bench.limit_bytes, "base_bytes": bench.memory.base_bytes({"batch": BATCH}), **fields}
    return Surrogate(candidates, peak_error=0.02, trials=trials, **fields)


@pytest.fixture
def learn(bench, candidates):
    return lambda trials, **fields: learn_from(trials, bench, candidates, **fields)


@pytest.fixture
def some(bench):
    return bench.tried(*list(bench.landscape)[::10])


def truths(bench, candidates):
    return np.array([bench.landscape[candidates.config(place)] for place in range(len(candidates))]).T


def test_a_prior_tells_step_times_and_no_peaks_or_differences_where_there_is_no_reference(
    bench, candidates, learn, some
):
    """Another problem's memory is another; what recompute costs is much the same."""
    with_prior, without = learn([], prior=some), learn([])
    steps = truths(bench, candidates)[1]
    assert np.array_equal(with_prior.peak_bytes, without.peak_bytes)
    assert np.abs(with_prior.step - steps).mean() < np.abs(without.step - steps).mean()
    measured = learn(some)
    assert measured.step_deviation.mean() < with_prior.step_deviation.mean() < without.step_deviation.mean()
    timed = [dataclasses.replace(trial, reference_seconds=None) for trial in some[1:4]]
    with_prior, without = learn(timed, prior=some), learn(timed)
    assert not with_prior.has_reference
    assert np.std(with_prior.step - steps) < np.std(without.step - steps)


def test_a_peak_that_is_noted_moves_those_of_all_others_until_it_is_measured(candidates, learn, some):
    plain, config = learn([]), some[3].config
    peak = round(float(plain.peak_bytes[candidates.places[config]]))
    noted = learn([], noted={config: peak + peak // 10})
    assert (noted.peak_bytes > plain.peak_bytes).mean() > 0.9
    assert (noted.peak_deviation <= plain.peak_deviation).all()
    assert np.array_equal(learn([some[3]], noted={config: 2 * peak}).peak_bytes, learn([some[3]]).peak_bytes)


@pytest.mark.parametrize("seed", [1, 4, 6, 7])
def test_own_trials_outvote_many_of_a_problem_whose_switches_cost_otherwise(make_profiled, seed):
    """Every other switch costs twice as much there, and the rest a third: a few own trials tell what it is here."""
    bench = make_profiled(seed=seed)
    candidates = candidates_of(bench)
    added = {plan: bench.step_seconds(Config.of([plan])) - 1 for plan in bench.space.plans}
    factors = dict(zip(bench.space.plans, itertools.cycle([2, 1 / 3]), strict=False))
    prior = [
        dataclasses.replace(
            trial,
            reference_seconds=trial.measurement.step_seconds[0]
            / (1 + sum(added[plan] * factors[plan] for plan in bench.space.plans_of(trial.config))),
        )
        for trial in bench.tried(*list(bench.landscape)[::3])
    ]
    own = bench.tried(*list(bench.landscape)[::21])
    outlook, (_, steps) = learn_from(own, bench, candidates, prior=prior), truths(bench, candidates)
    assert (np.abs(outlook.step - steps) < NINETY * outlook.step_deviation).mean() > 0.9


def test_a_lucky_measurement_settles_towards_what_was_expected(bench, learn, some):
    (trial,) = bench.tried(bench.space.all_on)
    lucky = dataclasses.replace(trial, reference_seconds=1.1)
    true, seen = bench.step_seconds(trial.config), 1 / lucky.relative_throughput
    assert seen < learn([*some, lucky]).settled_step(lucky) < true + 0.01


def test_what_choices_add_beyond_their_kernels_is_expected(bench, candidates, learn):
    (none,) = bench.tried(Config())
    without = learn([none]).step
    candidates.call_seconds = np.full(candidates.switches.shape[1], 0.05)
    half_as_fast = dataclasses.replace(none, reference_seconds=2 * none.reference_seconds)
    added = [learn([trial]).step - without for trial in (none, half_as_fast)]
    count = candidates.switches.sum(axis=1)
    assert added[0] == pytest.approx(0.05 * count, abs=1e-6)
    assert added[1] == pytest.approx(0.025 * count, abs=1e-6)
    assert learn([]).step == pytest.approx(without)


SWITCHES = 6
BELIEFS = Regression(
    means=np.array([1.0, *[0.0] * SWITCHES]), deviations=np.array([0.1, *[0.05] * SWITCHES]), own=0.005, noise=0.01
)
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
