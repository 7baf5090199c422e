"""What the greedy search learns from trials about time and memory, and the steps that it takes from a config."""

import dataclasses
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


def test_an_untried_plan_is_expected_to_cost_time(bench, make_trials):
    times = TimeModel(bench.space, make_trials(()))
    assert times.forecast(bench.space.all_on) > times.forecast(Config.of(bench.space.plans[:2])) > 1


def test_an_opaque_preset_teaches_nothing_about_plans(bench, make_trials):
    trials = make_trials((), (0,))
    preset = Config.parse(["whole model:light"])
    more = bench.tried(*(trial.config for trial in trials), preset)
    assert more[2].measurement.peak_bytes is not None
    plan = bench.space.plans[0]
    assert TimeModel(bench.space, more).cost(plan) == pytest.approx(TimeModel(bench.space, trials).cost(plan))
    assert PeakModel(bench.space, more, bench.limit_bytes).spare_bytes(preset) is None


def test_the_peak_of_a_tried_config_is_what_was_measured(bench, make_trials):
    trials = make_trials((), (0, 2, 4))
    peaks = PeakModel(bench.space, trials, bench.limit_bytes)
    assert [peaks.spare_bytes(trial.config) for trial in trials] == [
        bench.limit_bytes - trial.measurement.peak_bytes for trial in trials
    ]


def test_a_saving_is_taken_from_the_most_similar_trials(bench, make_trials):
    plans = bench.space.plans
    trials = make_trials((), (0,), (1, 2, 3), (0, 1, 2, 3))
    peaks = PeakModel(bench.space, trials, bench.limit_bytes)
    none, alone, others, together = (trial.measurement.peak_bytes for trial in trials)
    assert none - alone != others - together, "this bench cannot tell"
    assert peaks.saving_bytes(plans[0], Config()) == max(0, none - alone)
    assert peaks.saving_bytes(plans[0], Config.of(plans[1:4])) == max(0, others - together)


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


def test_forecasts_learn_from_their_misses(make_bench):
    bench = make_bench(seed=1)
    plans = bench.space.plans
    singles = [Config.of([plan]) for plan in plans]
    alone = bench.tried(Config(), *singles)
    sums = bench.tried(Config(), *singles, Config.of(plans[:3]), Config.of(plans[3:7]))
    for place, trial in enumerate(sums):
        if len(trial.config.choices) > 1:
            measured = dataclasses.replace(trial.measurement, peak_bytes=trial.measurement.peak_bytes + 50)
            sums[place] = dataclasses.replace(trial, measurement=measured)
    far = Config.of(plans[7:11])
    assert PeakModel(bench.space, sums, 1).excess_bytes(far) > PeakModel(bench.space, alone, 1).excess_bytes(far)


@pytest.fixture
def make_moves(make_bench):
    def build(base, *others, spare_bytes, compromises=0):
        bench = make_bench(plans=6, seed=4, compromises=compromises)
        plans = bench.space.plans
        configs = [Config.of(plans[index] for index in config) for config in (base, *others)]
        limit_bytes = bench.peak_bytes(configs[0]) + spare_bytes
        trials = bench.tried(*configs)
        times, peaks = TimeModel(bench.space, trials), PeakModel(bench.space, trials, limit_bytes)
        return configs[0], list(moves_from(configs[0], bench.space, times, peaks)), peaks, bench.space

    return build


SINGLES = [(index,) for index in range(6)]


@pytest.mark.parametrize("spare_bytes", [-1, 0])
def test_each_plan_can_be_switched(make_moves, spare_bytes):
    base, moves, _, _ = make_moves((0, 1, 2), spare_bytes=spare_bytes)
    assert len({config for config in moves if len(config.choices ^ base.choices) == 1}) == 6


def test_growth_goes_as_far_as_it_takes(make_moves):
    _, moves, peaks, _ = make_moves((), *SINGLES, spare_bytes=-400)
    longest = max(moves, key=lambda config: len(config.choices))
    assert len(longest.choices) > 1
    assert peaks.excess_bytes(longest) == 0
    assert all(peaks.excess_bytes(config) > 0 for config in moves if config.choices < longest.choices)


def test_pruning_stops_at_the_limit(make_moves):
    all_on = tuple(range(6))
    all_but = [tuple(other for other in all_on if other != index) for index in all_on]
    base, moves, peaks, space = make_moves(all_on, (), *SINGLES, *all_but, spare_bytes=150)
    savings = {plan.choices[0]: peaks.saving_bytes(plan, base) for plan in space.plans}
    several = [config for config in moves if len(base.choices - config.choices) > 1]
    lost = [sum(savings[row] for row in base.choices - config.choices) for config in several]
    assert several
    assert max(lost) <= 150


def test_the_other_option_takes_the_place_of_the_first(make_moves):
    base, moves, _, _ = make_moves((0,), spare_bytes=-1, compromises=1)
    (choice,) = base.choices
    others = [config for config in moves if any(other.site == choice.site for other in config.choices - base.choices)]
    assert others
    assert all(choice not in config.choices for config in others)


def test_nothing_starts_from_an_unknown_peak(make_bench):
    bench = make_bench(plans=6)
    trials = bench.tried(Config())
    times, peaks = TimeModel(bench.space, trials), PeakModel(bench.space, trials, bench.limit_bytes)
    assert list(moves_from(bench.space.all_on, bench.space, times, peaks)) == []
