"""What the search learns from trials about time and memory."""

import dataclasses
import statistics

import pytest

from autorecompute.plans import Config
from autorecompute.search.peaks import PeakModel
from autorecompute.search.times import TimeModel


@pytest.fixture
def bench(make_bench):
    """A bench of six plans whose step times have no noise."""
    return make_bench(plans=6, noise=0)


@pytest.fixture
def make_trials(bench):
    """Builds the trials of configs, each given as the numbers of its plans."""

    def build(*configs):
        return bench.tried(*(Config.of(bench.space.plans[index] for index in config) for config in configs))

    return build


def test_costs_are_told_apart_from_groups_of_plans(bench, make_trials):
    """Overlapping groups tell the time of a config that was never measured, without one plan ever being alone."""
    plans = bench.space.plans
    trials = make_trials((), (0, 1), (1, 2), (0, 2), (3, 4, 5), (4, 5), (0, 3, 5), (0, 1, 2, 3, 4, 5))
    times = TimeModel(bench.space, trials)
    untried = Config.of([plans[0], plans[3]])
    expected = bench.step_seconds(untried) / bench.step_seconds(Config())
    assert times.forecast(untried) / times.measured(trials[0]) == pytest.approx(expected, abs=0.005)


def test_an_untried_plan_is_expected_to_cost_time(bench, make_trials):
    """Before any trial tells, a config with more plans is expected to be slower."""
    times = TimeModel(bench.space, make_trials(()))
    assert times.forecast(bench.space.all_on) > times.forecast(Config.of(bench.space.plans[:2])) > 1


def test_an_opaque_preset_teaches_nothing_about_plans(bench, make_trials):
    """An opaque preset is no mix of plans, so its time and peak say nothing of any plan's."""
    trials = make_trials((), (0,))
    preset = Config.parse(["whole model:light"])
    more = bench.tried(*(trial.config for trial in trials), preset)
    assert more[2].measurement.peak_bytes is not None
    plan = bench.space.plans[0]
    assert TimeModel(bench.space, more).cost(plan) == pytest.approx(TimeModel(bench.space, trials).cost(plan))
    assert PeakModel(bench.space, more, bench.limit_bytes).spare_bytes(preset) is None


def test_the_peak_of_a_tried_config_is_what_was_measured(bench, make_trials):
    """No forecast replaces a measurement."""
    trials = make_trials((), (0, 2, 4))
    peaks = PeakModel(bench.space, trials, bench.limit_bytes)
    assert [peaks.spare_bytes(trial.config) for trial in trials] == [
        bench.limit_bytes - trial.measurement.peak_bytes for trial in trials
    ]


def test_a_saving_is_taken_from_the_most_similar_trials(bench, make_trials):
    """What a plan saved beside others counts in their company, what it saved alone counts for it alone."""
    plans = bench.space.plans
    trials = make_trials((), (0,), (1, 2, 3), (0, 1, 2, 3))
    peaks = PeakModel(bench.space, trials, bench.limit_bytes)
    none, alone, others, together = (trial.measurement.peak_bytes for trial in trials)
    assert none - alone != others - together, "this bench cannot tell"
    assert peaks.saving_bytes(plans[0], Config()) == max(0, none - alone)
    assert peaks.saving_bytes(plans[0], Config.of(plans[1:4])) == max(0, others - together)


def test_the_end_of_a_chain_is_no_negative_saving(make_bench):
    """A plan that is best left out of all plans still counts as one that saves what it saved alone."""
    bench = make_bench(seed=1)
    space = bench.space
    breaker = min(space.plans, key=lambda plan: bench.peak_bytes(space.all_on.without_plan(plan)))
    configs = [Config(), Config.of([breaker]), space.all_on, space.all_on.without_plan(breaker)]
    trials = bench.tried(*configs)
    none, alone, all_on, all_but = (trial.measurement.peak_bytes for trial in trials)
    assert all_but < all_on, "this bench has no chain"
    assert PeakModel(space, trials, bench.limit_bytes).saving_bytes(breaker, space.all_on) == none - alone > 0


def test_running_out_of_memory_is_above_the_limit(make_bench):
    """A config that failed for want of memory counts as too large, and its neighbours are judged from there."""
    bench = make_bench(plans=6, runs_out=True)
    bench.limit_to(0.5)
    measured = min(bench.landscape, key=bench.landscape.get)
    trials = bench.tried(Config(), measured)
    peaks = PeakModel(bench.space, trials, bench.limit_bytes)
    assert trials[0].measurement.peak_bytes is None
    assert peaks.excess_bytes(Config()) == -peaks.spare_bytes(Config()) > 0


def test_noise_is_not_taken_for_cost(make_bench):
    """On a machine whose step times swing by a tenth, forecasts are nearer to the truth than single measurements."""
    for seed in range(3):
        bench = make_bench(seed=seed, noise=0.1)
        trials = bench.run(budget=28)
        times = TimeModel(bench.space, trials)
        scale = times.forecast(Config()) / bench.step_seconds(Config())
        missed = [times.forecast(t.config) / scale - bench.step_seconds(t.config) for t in trials]
        measured = [t.measurement.step_seconds[0] - bench.step_seconds(t.config) for t in trials]
        assert statistics.pstdev(missed) < 0.7 * statistics.pstdev(measured)


def test_forecasts_learn_from_their_misses(make_bench):
    """Where several plans save less together than apart, a config further off is expected to save less, too."""
    bench = make_bench(seed=1)
    plans = bench.space.plans
    alone = bench.tried(Config(), *(Config.of([plan]) for plan in plans))
    sums = bench.tried(Config(), *(Config.of([plan]) for plan in plans), Config.of(plans[:3]), Config.of(plans[3:7]))
    lowered = [
        dataclasses.replace(
            trial, measurement=dataclasses.replace(trial.measurement, peak_bytes=trial.measurement.peak_bytes + 50)
        )
        if len(trial.config.choices) > 1
        else trial
        for trial in sums
    ]
    far = Config.of(plans[7:11])
    assert PeakModel(bench.space, lowered, 1).excess_bytes(far) > PeakModel(bench.space, alone, 1).excess_bytes(far)
