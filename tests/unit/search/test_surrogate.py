import dataclasses
import itertools

import numpy as np
import pytest

from autorecompute.plans import Config
from autorecompute.search.candidates import Candidates, choices_of
from autorecompute.search.surrogate import Surrogate

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


def test_a_prior_tells_step_times_and_no_peaks(bench, candidates, learn, some):
    """Another problem's memory is another; what recompute costs is much the same."""
    with_prior, without = learn([], prior=some), learn([])
    steps = truths(bench, candidates)[1]
    assert np.array_equal(with_prior.peak_bytes, without.peak_bytes)
    assert np.abs(with_prior.step - steps).mean() < np.abs(without.step - steps).mean()
    measured = learn(some)
    assert measured.step_deviation.mean() < with_prior.step_deviation.mean() < without.step_deviation.mean()


def test_a_peak_that_is_noted_moves_those_of_all_others_until_it_is_measured(candidates, learn, some):
    plain, config = learn([]), some[3].config
    peak = round(float(plain.peak_bytes[candidates.places[config]]))
    noted = learn([], noted={config: peak + peak // 10})
    assert (noted.peak_bytes > plain.peak_bytes).mean() > 0.9
    assert (noted.peak_deviation <= plain.peak_deviation).all()
    assert np.array_equal(learn([some[3]], noted={config: 2 * peak}).peak_bytes, learn([some[3]]).peak_bytes)


def test_a_prior_tells_of_differences_where_there_is_no_reference(bench, candidates, learn, some):
    _, steps = truths(bench, candidates)
    timed = [dataclasses.replace(trial, reference_seconds=None) for trial in some[1:4]]
    with_prior, without = learn(timed, prior=some), learn(timed)
    assert not with_prior.has_reference
    assert np.std(with_prior.step - steps) < np.std(without.step - steps)


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
