import dataclasses
import itertools

import numpy as np
import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.search.candidates import Candidates, choices_of
from autorecompute.search.surrogate import Surrogate, normal

BATCH = 16
NINETY = 1.645


@pytest.fixture
def bench(make_profiled):
    bench = make_profiled(noise=0.0)
    bench.limit_to(0.4)
    return bench


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


def with_measurement(trial, **changes):
    return dataclasses.replace(trial, measurement=dataclasses.replace(trial.measurement, **changes))


@pytest.fixture
def some(bench):
    return bench.tried(*list(bench.landscape)[::10])


def truths(bench, candidates):
    return np.array([bench.landscape[candidates.config(place)] for place in range(len(candidates))]).T


def test_the_chance_to_fit_is_that_of_the_expected_peak(bench, learn, some):
    outlook = learn(some).outlook()
    order = ((bench.limit_bytes - outlook.peak_bytes) / outlook.peak_deviation).argsort()
    assert (np.diff(outlook.fits[order]) >= 0).all()
    place = int(order[len(order) // 2])
    assert learn(some, limit_bytes=float(outlook.peak_bytes[place])).outlook().fits[place] == pytest.approx(0.5)


def test_running_out_of_memory_makes_the_like_less_likely_to_fit(bench, candidates, learn):
    bench.runs_out = True
    (failed,) = bench.tried(bench.space.all_on.without_plan(bench.space.plans[0]))
    lost = with_measurement(failed, outcome=Outcome.OOM, peak_bytes=None)
    place = candidates.places[lost.config]
    expected = learn([]).outlook().peak_bytes[place]
    # A limit well above what is expected of it, so that the failure is a surprise.
    before = learn([], limit_bytes=1.05 * expected).outlook()
    after = learn([lost], limit_bytes=1.05 * expected).outlook()
    assert before.fits[place] > 0.5
    assert after.fits[place] < before.fits[place]
    assert (after.peak_bytes > before.peak_bytes).mean() > 0.9


def test_a_failure_of_another_kind_tells_nothing(bench, learn, some):
    """A process that crashed says neither how much it needs nor how long it takes."""
    bench.crashing = bench.space.plans[0].choices[0].site
    crashed = bench.tried(bench.space.all_on)
    assert crashed[0].measurement.outcome is Outcome.CRASH
    with_it, without = learn([*some, *crashed]).outlook(), learn(some).outlook()
    assert np.array_equal(with_it.peak_bytes, without.peak_bytes)
    assert np.array_equal(with_it.step, without.step)


def test_an_opaque_preset_tells_nothing_of_plans(learn, some):
    preset = dataclasses.replace(some[-1], config=Config.parse(["whole model:light"]))
    assert np.array_equal(learn([*some, preset]).outlook().peak_bytes, learn(some).outlook().peak_bytes)


def test_without_a_reference_times_are_those_beside_the_fastest(bench, candidates, learn, some):
    unknown = [dataclasses.replace(trial, reference_seconds=None) for trial in some]
    slowed = [with_measurement(one, step_seconds=(7 * one.measurement.step_seconds[0],)) for one in unknown]
    assert learn(slowed).outlook().step == pytest.approx(learn(unknown).outlook().step)
    steps = truths(bench, candidates)[1]
    ratios = learn(unknown).outlook().step / steps
    assert ratios.std() / ratios.mean() < 0.02


def test_a_prior_tells_step_times_and_no_peaks(bench, candidates, learn, some):
    """Another problem's memory is another; what recompute costs is much the same."""
    with_prior, without = learn([], prior=some).outlook(), learn([]).outlook()
    steps = truths(bench, candidates)[1]
    assert np.array_equal(with_prior.peak_bytes, without.peak_bytes)
    assert np.abs(with_prior.step - steps).mean() < np.abs(without.step - steps).mean()
    measured = learn(some).outlook()
    assert measured.step_deviation.mean() < with_prior.step_deviation.mean() < without.step_deviation.mean()


def test_a_prior_tells_of_differences_where_there_is_no_reference(bench, candidates, learn, some):
    _, steps = truths(bench, candidates)
    timed = [dataclasses.replace(trial, reference_seconds=None) for trial in some[1:4]]
    with_prior, without = learn(timed, prior=some).outlook(), learn(timed).outlook()
    assert not with_prior.is_relative
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
    outlook, (_, steps) = learn_from(own, bench, candidates, prior=prior).outlook(), truths(bench, candidates)
    assert (np.abs(outlook.step - steps) < NINETY * outlook.step_deviation).mean() > 0.9


def test_a_lucky_measurement_settles_towards_what_was_expected(bench, learn, some):
    (trial,) = bench.tried(bench.space.all_on)
    lucky = dataclasses.replace(trial, reference_seconds=1.1)
    true, seen = bench.step_seconds(trial.config), 1 / lucky.relative_throughput
    assert seen < learn([*some, lucky]).settled_step(lucky) < true + 0.01


def test_the_normal_distribution_is_that_of_the_tables():
    assert normal(np.array([-1.959964, 0.0, 1.644854])) == pytest.approx([0.025, 0.5, 0.95], abs=1e-6)


def test_what_choices_add_beyond_their_kernels_is_expected(bench, candidates, learn):
    (none,) = bench.tried(Config())
    without = learn([none]).outlook().step
    candidates.call_seconds = np.full(candidates.switches.shape[1], 0.05)
    half_as_fast = dataclasses.replace(none, reference_seconds=2 * none.reference_seconds)
    added = [learn([trial]).outlook().step - without for trial in (none, half_as_fast)]
    count = candidates.switches.sum(axis=1)
    assert added[0] == pytest.approx(0.05 * count, abs=1e-6)
    assert added[1] == pytest.approx(0.025 * count, abs=1e-6)
    assert learn([]).outlook().step == pytest.approx(without)
