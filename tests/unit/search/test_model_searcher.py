"""The search that knows its subject, on graphs where the best config is known by brute force."""

import dataclasses
import itertools
import math

import pytest

from autorecompute.backends.ortmodule.memory import OrtMemoryModel
from autorecompute.measurement import Measurement, Outcome
from autorecompute.memory import Forecast
from autorecompute.plans import Config, Space
from autorecompute.search import ModelSearcher, model_searcher
from autorecompute.search.candidates import choices_of
from autorecompute.search.model_searcher import MARGIN, SLACK, count_since_gain

SEEDS = range(3)
SHARES = (0.2, 0.4, 0.8)

GIVEN = ("baseline", "preset")
"""Why a config is measured that is measured in every study."""


@pytest.fixture(scope="module")
def benches(make_profiled):
    return [make_profiled(seed=seed) for seed in SEEDS]


@pytest.fixture
def make_limited(make_profiled):
    return lambda share=0.4, **fields: make_profiled(**fields).limit_to(share)


@pytest.fixture
def make_known(make_limited, monkeypatch):
    """Makes benches whose memory is known."""
    monkeypatch.setattr(OrtMemoryModel, "likely_error", 0.001)
    return make_limited


def configs_of(trials):
    return [trial.config for trial in trials]


def simulate(bench, configs):
    """What the configs should need, by the two profiled steps alone."""
    simulator = bench.memory.simulator({"batch": 1}, choices_of(bench.space))
    return simulator.simulate(simulator.matrix(configs))


@pytest.mark.parametrize("runs_out", [False, True], ids=["measured above the limit", "out of memory"])
@pytest.mark.parametrize("share", SHARES)
def test_eight_trials_of_128_configs_find_one_within_a_percent_of_the_best(benches, share, runs_out):
    for bench in benches:
        bench.limit_to(share)
        bench.runs_out = runs_out
        assert bench.found_share(bench.run(budget=8)) > 0.99, f"seed {bench.seed}"


def test_presets_come_first_and_nothing_is_predicted_of_opaque_ones(make_limited):
    bench = make_limited()
    presets = list(dict.fromkeys(bench.space.presets.values()))
    trials = bench.run()
    assert configs_of(trials[: len(presets)]) == presets
    assert [trial.reason for trial in trials[: len(presets)]] == ["baseline"] + ["preset"] * (len(presets) - 1)
    assert len(trials) > len(presets)
    bench = make_limited()
    opaque = {name: Config.parse([f"by itself:{name}"]) for name in ("light", "deep")}
    bench.space = dataclasses.replace(bench.space, own_presets=opaque)
    trials = bench.run()
    tried = {trial.config: trial.prediction for trial in trials if not bench.space.is_mix(trial.config)}
    assert tried == dict.fromkeys(opaque.values())
    assert len(trials) > 4


def test_where_memory_is_known_no_preset_is_measured_for_its_name(make_known):
    trials = make_known().run()
    assert trials[0].reason == "baseline"
    assert "preset" not in {trial.reason for trial in trials}
    assert trials[1].fits


def test_the_more_trials_have_gained_nothing_the_less_is_expected_of_the_next(make_known):
    bench = make_known(noise=0.0)
    trials = bench.run()
    *_, last = (searched for searched in range(2, len(trials)) if any(trial.fits for trial in trials[:searched]))
    first = next(searched for searched in range(2, last) if any(trial.fits for trial in trials[:searched]))
    early, late = (bench.searcher().propose(trials[:searched]).gain for searched in (first, last))
    assert 0 < late < early


@pytest.mark.parametrize(("first", "then"), [(0.8, 0.3), (0.3, 0.8)], ids=["lower", "higher"])
def test_another_limit_is_searched_anew(make_known, first, then):
    for seed in SEEDS:
        bench = make_known(first, seed=seed)
        trials = bench.run()
        bench.limit_to(then)
        known = [trial.under(bench.limit_bytes) for trial in trials]
        assert bench.found_share(bench.run(known, budget=1000, known_trials=len(known))) > 0.99


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        ([1.3, 1.2, 1.25, 1.21], 2),
        ([1.3, 1.2, 1.196, 1.192], 2),
        ([1.3, 1.2, 1.18, 1.19], 1),
        ([math.inf, 1.2, math.inf], 1),
    ],
    ids=["no better", "better by less than noise", "better", "does not fit"],
)
def test_a_trial_gains_where_it_is_better_by_more_than_a_percent(steps, count):
    """The best of many that are alike seems a little faster after each of them, and would be waited for."""
    assert count_since_gain(steps) == count


@pytest.mark.parametrize(
    ("peak_over_limit", "share", "is_measured"),
    [(0.9, 0.001, True), (1.5, 0.001, False), (0.9, 0.9, False), (0.9, 0.0, True)],
    ids=["it may be the fastest", "it does not fit", "mixes recompute less", "nothing is known of it"],
)
def test_an_opaque_preset_of_which_something_is_forecast_is_measured_where_it_may_be_the_fastest(
    make_known, monkeypatch, peak_over_limit, share, is_measured
):
    bench = make_known()
    preset = Config.parse(["by itself:every_2nd"])
    bench.space = dataclasses.replace(bench.space, own_presets={"every_2nd": preset})
    peak_bytes = round(peak_over_limit * bench.limit_bytes)
    forecast = Forecast(
        config=preset, peak_bytes=peak_bytes, live_bytes=1, stash_bytes=1, error_share=0.1, recompute_share=share
    )
    monkeypatch.setattr(OrtMemoryModel, "forecasts", lambda _memory, _dims: [forecast])
    assert (preset in configs_of(bench.run(budget=6))) == is_measured


def test_a_model_without_plans_is_measured_once(make_profiled, make_step):
    bench = make_profiled()
    bench.space = Space(plans=())
    small = dataclasses.replace(bench.memory.small, profiles={Config(): make_step("fl", ("x", 0, 1, "batch", "4"))})
    memory = OrtMemoryModel(bench.space, small)
    searcher = ModelSearcher(bench.space, limit_bytes=bench.limit_bytes, memory=memory, dims={"batch": 2})
    first = searcher.propose([])
    assert first.config == Config()
    over = bench.try_out(first, 0)
    assert over.measurement.outcome is Outcome.OVER_LIMIT
    assert searcher.propose([over]) is None


def test_a_reason_tells_the_chance_to_fit_and_how_far_ahead_of_the_best_the_config_should_be(make_limited):
    bench, leads = make_limited(), []
    trials = bench.run()
    for trial in trials:
        before = trials[: trial.number]
        expected = bench.searcher().expect_steps(before)
        fitting = [expected[other.number] for other in before if other.fits]
        if trial.reason not in GIVEN and fitting:
            leads.append(min(fitting) / trial.prediction.step - 1)
            side = "faster" if leads[-1] > 0 else "slower"
            fits = trial.prediction.fits
            assert trial.reason == f"{fits:.0%} to fit, {abs(leads[-1]):.1%} {side} than the best"
    assert min(leads) < 0


@pytest.mark.parametrize("seed", SEEDS)
def test_more_than_what_fits_is_never_recomputed(make_limited, seed):
    bench = make_limited(seed=seed, share=0.5)
    trials = bench.run(budget=100)
    shares = simulate(bench, configs_of(trials)).recompute_share
    for trial in trials:
        if trial.reason not in GIVEN:
            fitting = [other for other in trials[: trial.number] if other.fits]
            within = [other.number for other in fitting if trial.config.choices >= other.config.choices]
            assert all(shares[trial.number] <= shares[number] + MARGIN for number in within)


@pytest.mark.parametrize("share", SHARES)
def test_a_search_ends_when_nothing_is_left_to_gain_and_tries_nothing_twice(benches, share):
    for bench in benches:
        bench.limit_to(share)
        configs = configs_of(bench.run(budget=1000))
        assert len(configs) < 60
        assert len(set(configs)) == len(configs)


def test_a_machine_that_slows_down_changes_nothing_and_a_prior_tells_which_plans_are_slow(make_limited):
    bench = make_limited()
    slowing = bench.run(reference_seconds=lambda number: 2.0 if number < 4 else 8.0)
    assert configs_of(slowing) == configs_of(bench.run())
    bench = make_limited(share=0.3, noise=0.0)
    with_prior, without = bench.run(prior=bench.tried(*list(bench.landscape)[:60])), bench.run()
    assert len(with_prior) <= len(without)
    assert bench.found_share(with_prior) > 0.99


def test_without_a_reference_the_best_is_found_and_no_step_time_is_promised(benches, make_limited):
    """A figure relative to the fastest trial so far cannot be held against a measurement later."""
    for bench in benches:
        bench.limit_to(0.4)
        trials = bench.run(reference_seconds=lambda _number: None)
        assert bench.found_share(trials) > 0.98
    trials = make_limited().run(budget=6, reference_seconds=lambda _number: None)
    assert {trial.prediction.step for trial in trials[1:] if trial.prediction is not None} == {None}
    assert all(trial.prediction.peak_low < trial.prediction.peak_bytes for trial in trials[2:])


@pytest.mark.parametrize("noise", [0.004, 0.04])
def test_intervals_hold_their_expectation_and_most_of_what_is_then_measured(make_limited, noise):
    within = []
    for trial in (trial for seed in SEEDS for trial in make_limited(seed=seed, noise=noise).run(budget=20)):
        told, peak, step = trial.prediction, trial.measurement.peak_bytes, 1 / trial.relative_throughput
        assert told.peak_low < told.peak_bytes < told.peak_high
        assert told.step_low < told.step < told.step_high
        assert 0 <= told.fits <= 1
        within.append((told.peak_low < peak < told.peak_high, told.step_low <= step <= told.step_high))
    assert all(sum(held) >= 0.8 * len(held) for held in zip(*within, strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_that_crashes_in_company_is_found_and_avoided(make_limited, seed):
    bench = make_limited(seed=seed, share=0.7)
    within = [config for config, (peak_bytes, _) in bench.landscape.items() if peak_bytes <= bench.limit_bytes]
    best = min(within, key=bench.step_seconds)
    bench.crashing = next(iter(best.choices)).site
    trials = bench.run(budget=1000)
    failures = [trial for trial in trials if trial.measurement.outcome is Outcome.CRASH and trial.reason not in GIVEN]
    assert len(failures) <= 3
    sound = [config for config in within if not any(on.site == bench.crashing for on in config.choices)]
    found = min(bench.step_seconds(trial.config) for trial in trials if trial.fits)
    assert found <= 1.02 * min(map(bench.step_seconds, sound))


def test_under_a_limit_that_nothing_can_hold_the_least_peak_is_found_and_that_is_all(make_limited):
    bench = make_limited(runs_out=True)
    bench.limit_bytes = 0
    assert set(configs_of(bench.run(budget=1000))) == set(bench.space.presets.values())
    bench = make_limited(-0.5)
    trials = bench.run()
    assert not any(trial.fits for trial in trials)
    assert len(trials) < 15
    least = min(peak_bytes for peak_bytes, _ in bench.landscape.values())
    assert min(trial.measurement.peak_bytes for trial in trials) < 1.02 * least


@pytest.mark.parametrize("share", [-0.05, -0.1, -0.15])
def test_trials_that_are_lost_to_memory_are_few_where_nothing_fits(make_limited, monkeypatch, share):
    """Each costs a process and tells no peak: after three of them the next one has to have a chance."""
    trials = make_limited(share, runs_out=True).run(budget=100)
    assert not any(trial.fits for trial in trials)
    monkeypatch.setattr(model_searcher, "LOST_TRIALS", math.inf)
    assert len(trials) < len(make_limited(share, runs_out=True).run(budget=100))


@pytest.mark.parametrize("share", SHARES)
def test_where_configs_have_to_fit_for_sure_only_the_least_peak_breaks_the_limit(benches, share):
    for bench in benches:
        bench.limit_to(share)
        trials = bench.run(budget=8, least_fit=0.999)
        assert trials
        assert {trial.reason for trial in trials if not trial.fits} <= {"least peak"}


CLEARLY = SLACK * OrtMemoryModel.likely_error


@pytest.fixture
def make_tight(make_profiled):
    return lambda **fields: make_profiled(runs_out=True, **fields).limit_to(0.3)


@pytest.mark.parametrize("seed", range(6))
def test_what_surely_needs_more_than_a_config_that_ran_out_is_never_tried(make_tight, seed):
    bench = make_tight(seed=seed)
    trials = bench.run(budget=100)
    peaks = simulate(bench, configs_of(trials)).peak_bytes
    presets = set(bench.space.presets.values())
    ran_out = [trial.number for trial in trials if trial.measurement.outcome is Outcome.OOM]
    assert ran_out
    for trial in trials:
        if trial.config not in presets:
            earlier = [peaks[number] for number in ran_out if number < trial.number]
            assert peaks[trial.number] < min(earlier, default=math.inf) + CLEARLY * max(peaks)


@pytest.mark.parametrize(("likely_error", "is_tried"), [(0.06, True), (0.005, False)])
def test_poor_forecasts_rule_little_out(make_tight, list_configs, monkeypatch, likely_error, is_tried):
    monkeypatch.setattr(OrtMemoryModel, "likely_error", likely_error)
    bench = make_tight()
    configs = list_configs(bench.space)
    peaks = simulate(bench, configs).peak_bytes
    lower, higher = next(
        (lower, higher)
        for lower, higher in itertools.permutations(range(len(configs)), 2)
        if 0.03 < (peaks[higher] - peaks[lower]) / max(peaks) < 0.05
    )
    bench.limit_bytes = bench.peak_bytes(configs[higher]) + 1
    ran_out = dataclasses.replace(bench.tried(configs[lower])[0], measurement=Measurement(outcome=Outcome.OOM))
    proposal = bench.searcher().propose([ran_out], [config for config in configs if config != configs[higher]])
    assert (proposal is not None and proposal.config == configs[higher]) == is_tried
