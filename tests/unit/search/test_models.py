"""What the greedy search learns from trials about time and memory, and the steps that it takes from a config."""

import statistics

import pytest

from autorecompute.plans import Config
from autorecompute.search.moves import moves_from
from autorecompute.search.peaks import PeakModel
from autorecompute.search.times import TimeModel


@pytest.fixture
def bench(make_bench):
    return make_bench(plans=6, noise=0)


@pytest.fixture
def make_trials(bench):
    def build(*configs):
        return bench.tried(*(Config.of(bench.space.plans[index] for index in config) for config in configs))

    return build


def test_costs_are_told_apart_from_groups_of_plans(bench, make_trials):
    plans = bench.space.plans
    trials = make_trials((), (0, 1), (1, 2), (0, 2), (3, 4, 5), (4, 5), (0, 3, 5), (0, 1, 2, 3, 4, 5))
    times = TimeModel(bench.space, trials)
    untried = Config.of([plans[0], plans[3]])
    expected = bench.step_seconds(untried) / bench.step_seconds(Config())
    assert times.forecast(untried) / times.measured(trials[0]) == pytest.approx(expected, abs=0.005)


def test_an_opaque_preset_teaches_nothing_about_plans(bench, make_trials):
    trials = make_trials((), (0,))
    preset = Config.parse(["whole model:light"])
    more = bench.tried(*(trial.config for trial in trials), preset)
    assert more[2].measurement.peak_bytes is not None
    plan = bench.space.plans[0]
    assert TimeModel(bench.space, more).cost(plan) == pytest.approx(TimeModel(bench.space, trials).cost(plan))
    assert PeakModel(bench.space, more, bench.limit_bytes).spare_bytes(preset) is None


def test_the_end_of_a_chain_is_no_negative_saving(make_bench):
    bench = make_bench(seed=1)
    space = bench.space
    breaker = min(space.plans, key=lambda plan: bench.peak_bytes(space.all_on.without_plan(plan)))
    configs = [Config(), Config.of([breaker]), space.all_on, space.all_on.without_plan(breaker)]
    trials = bench.tried(*configs)
    none, alone, all_on, all_but = (trial.measurement.peak_bytes for trial in trials)
    assert all_but < all_on, "this bench has no chain"
    assert PeakModel(space, trials, bench.limit_bytes).saving_bytes(breaker, space.all_on) == none - alone > 0


def test_running_out_of_memory_is_above_the_limit(make_bench):
    bench = make_bench(plans=6, runs_out=True)
    bench.limit_to(0.5)
    measured = min(bench.landscape, key=bench.landscape.get)
    trials = bench.tried(Config(), measured)
    peaks = PeakModel(bench.space, trials, bench.limit_bytes)
    assert trials[0].measurement.peak_bytes is None
    assert peaks.excess_bytes(Config()) == -peaks.spare_bytes(Config()) > 0


def test_noise_is_not_taken_for_cost(make_bench):
    for seed in range(3):
        bench = make_bench(seed=seed, noise=0.1)
        trials = bench.run(budget=28)
        times = TimeModel(bench.space, trials)
        scale = times.forecast(Config()) / bench.step_seconds(Config())
        missed = [times.forecast(t.config) / scale - bench.step_seconds(t.config) for t in trials]
        measured = [t.measurement.step_seconds[0] - bench.step_seconds(t.config) for t in trials]
        assert statistics.pstdev(missed) < 0.7 * statistics.pstdev(measured)


def test_nothing_starts_from_an_unknown_peak(make_bench):
    bench = make_bench(plans=6)
    trials = bench.tried(Config())
    times, peaks = TimeModel(bench.space, trials), PeakModel(bench.space, trials, bench.limit_bytes)
    assert list(moves_from(bench.space.all_on, bench.space, times, peaks)) == []
