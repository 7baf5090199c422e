"""The search that knows its subject, on graphs where the best config is known by brute force."""

import dataclasses
import itertools
import math

import pytest

from autorecompute.backends.ortmodule.memory import OrtMemoryModel, OrtSimulator, draw_blueprint
from autorecompute.measurement import Outcome
from autorecompute.memory import Forecast
from autorecompute.plans import Config, Space
from autorecompute.search import ModelSearcher, model_searcher
from autorecompute.search.model_searcher import MARGIN, count_since_gain

SEEDS = range(3)
SHARES = (0.2, 0.4, 0.6, 0.8)

GIVEN = ("baseline", "preset")
"""Why a config is measured that is measured in every study."""


@pytest.fixture(scope="module")
def benches(make_profiled):
    """Benches of seven plans."""
    return [make_profiled(seed=seed) for seed in SEEDS]


@pytest.fixture
def make_limited(make_profiled):
    """Builds a bench with a limit between the least peak and that without recompute."""

    def build(share=0.4, **fields):
        bench = make_profiled(**fields)
        bench.limit_to(share)
        return bench

    return build


def configs_of(trials):
    """What was measured, in this order."""
    return [trial.config for trial in trials]


def simulate(bench, configs):
    """What the configs should need, by the two profiled steps alone."""
    blueprint = draw_blueprint(*bench.memory.profiles.values())
    simulator = OrtSimulator(blueprint, {"batch": 1}, [plan.choices[0] for plan in bench.space.plans])
    return simulator.simulate(simulator.matrix(configs))


@pytest.mark.parametrize("runs_out", [False, True], ids=["measured above the limit", "out of memory"])
@pytest.mark.parametrize("share", SHARES)
def test_the_best_of_all_configs_is_found_in_a_few_trials(benches, share, runs_out):
    """Of 128 configs, eight trials find one within 1 % of the fastest that fits."""
    for bench in benches:
        bench.limit_to(share)
        bench.runs_out = runs_out
        assert bench.found_share(bench.run(budget=8)) > 0.99, f"seed {bench.seed}"


def test_presets_come_first(make_limited):
    """No recompute and what could be switched on without measuring are measured in any case, and said to be that."""
    bench = make_limited()
    presets = list(dict.fromkeys(bench.space.presets.values()))
    trials = bench.run()
    assert configs_of(trials[: len(presets)]) == presets
    assert [trial.reason for trial in trials[: len(presets)]] == ["baseline"] + ["preset"] * (len(presets) - 1)
    assert len(trials) > len(presets)


def test_where_memory_is_known_few_presets_are_measured_for_their_names(make_limited, monkeypatch):
    """The leanest, and another that should be the fastest of those that fit; others where they may be worth it."""
    monkeypatch.setattr(OrtMemoryModel, "likely_error", 0.001)
    bench = make_limited()
    trials = bench.run()
    presets = [trial for trial in trials if trial.reason == "preset"]
    assert [trial.reason for trial in trials[:2]] == ["baseline", "preset"]
    assert len(presets) <= 2
    assert all(trial.fits for trial in presets[1:])
    leanest = min(bench.space.presets.values(), key=lambda preset: simulate(bench, [preset]).peak_bytes[0])
    assert presets[0].config == leanest


@pytest.mark.parametrize(("first", "then"), [(0.8, 0.3), (0.3, 0.8)], ids=["lower", "higher"])
def test_another_limit_is_searched_anew(make_limited, monkeypatch, first, then):
    """What was measured under the first limit, and holds no more or has room now, does not end the search."""
    monkeypatch.setattr(OrtMemoryModel, "likely_error", 0.001)
    for seed in SEEDS:
        bench = make_limited(first, seed=seed)
        trials = bench.run()
        bench.limit_to(then)
        trials = [trial.under(bench.limit_bytes) for trial in trials]
        searcher = bench.searcher(known_trials=len(trials))
        while proposal := searcher.propose(trials):
            trials.append(bench.try_out(proposal, len(trials), reference_seconds=1.0).under(bench.limit_bytes))
        assert bench.found_share(trials) > 0.99


def test_trials_under_another_limit_do_not_end_the_search(make_limited, monkeypatch):
    """Those that gained nothing there count for nothing here: a search has some trials of its own."""
    monkeypatch.setattr(OrtMemoryModel, "likely_error", 0.001)
    monkeypatch.setattr("autorecompute.search.model_searcher.LEAST_GAIN", 0.0)
    counts = {0: [], 1: []}
    for share, is_known in itertools.product((0.3, 0.4, 0.5), counts):
        bench = make_limited(share)
        trials = bench.run()
        bench.limit_to(share + 0.1)
        trials = [trial.under(bench.limit_bytes) for trial in trials]
        searcher, before = bench.searcher(known_trials=is_known * len(trials)), len(trials)
        while proposal := searcher.propose(trials):
            trials.append(bench.try_out(proposal, len(trials), reference_seconds=1.0).under(bench.limit_bytes))
        counts[is_known].append(len(trials) - before)
    assert max(counts[0]) < min(counts[1])


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


def test_opaque_presets_are_tried_and_nothing_is_predicted_of_them(make_limited):
    """An opaque preset is no mix of plans: nothing was simulated of it, and it teaches nothing about plans."""
    bench = make_limited()
    opaque = {name: Config.parse([f"by itself:{name}"]) for name in ("light", "deep")}
    bench.space = dataclasses.replace(bench.space, own_presets=opaque)
    proposals, trials = {}, []
    while proposal := bench.searcher().propose(trials):
        proposals[proposal.config] = proposal
        own_rows = proposal.config if bench.space.is_mix(proposal.config) else Config()
        measured = bench.try_out(dataclasses.replace(proposal, config=own_rows), len(trials), reference_seconds=1.0)
        trials.append(dataclasses.replace(measured, config=proposal.config))
    tried = [config for config in configs_of(trials) if not bench.space.is_mix(config)]
    assert tried == list(opaque.values())
    assert [proposals[config].prediction for config in tried] == [None, None]
    assert len(trials) > 4


@pytest.mark.parametrize(
    ("peak_over_limit", "share", "is_measured"),
    [(0.9, 0.001, True), (1.5, 0.001, False), (0.9, 0.9, False), (0.9, 0.0, True)],
    ids=["it may be the fastest", "it does not fit", "mixes recompute less", "nothing is known of it"],
)
def test_an_opaque_preset_of_which_something_is_forecast_is_measured_where_it_may_be_the_fastest(
    make_limited, monkeypatch, peak_over_limit, share, is_measured
):
    """It has to fit, and to recompute less than every mix that is likely to."""
    monkeypatch.setattr(OrtMemoryModel, "likely_error", 0.001)
    bench = make_limited()
    preset = Config.parse(["by itself:every_2nd"])
    bench.space = dataclasses.replace(bench.space, own_presets={"every_2nd": preset})
    peak_bytes = round(peak_over_limit * bench.limit_bytes)
    forecast = Forecast(
        config=preset, peak_bytes=peak_bytes, live_bytes=1, stash_bytes=1, error_share=0.1, recompute_share=share
    )
    monkeypatch.setattr(OrtMemoryModel, "forecasts", lambda _memory, _dims: [forecast])
    trials = []
    while len(trials) < 6 and (proposal := bench.searcher().propose(trials)):
        row = proposal.config if bench.space.is_mix(proposal.config) else Config()
        measured = bench.try_out(dataclasses.replace(proposal, config=row), len(trials), reference_seconds=1.0)
        trials.append(dataclasses.replace(measured, config=proposal.config))
    assert (preset in configs_of(trials)) == is_measured


def test_a_batch_that_fits_needs_no_search(make_profiled):
    """Without recompute is tried first, and where that fits nothing else is."""
    bench = make_profiled()
    bench.limit_bytes += 1
    assert configs_of(bench.run()) == [Config()]


def test_a_model_without_plans_is_measured_as_it_is(make_profiled, make_step):
    """Where nothing can be recomputed, there is one config to try and then none."""
    bench = make_profiled()
    step = make_step("fl", ("x", 0, 1, "batch", "4"))
    bench.space = Space(plans=())
    small = dataclasses.replace(bench.memory.small, profiles={Config(): step})
    memory = OrtMemoryModel(bench.space, small)
    searcher = ModelSearcher(bench.space, limit_bytes=bench.limit_bytes, memory=memory, dims={"batch": 2})
    first = searcher.propose([])
    assert first.config == Config()
    over = bench.try_out(first, 0, reference_seconds=1.0)
    assert over.measurement.outcome is Outcome.OVER_LIMIT
    assert searcher.propose([over]) is None


def test_why_a_config_is_tried_is_told_in_words(make_limited):
    """How likely it is to fit, and by how much of the throughput it should be ahead of the best so far, or behind."""
    bench, trials, leads = make_limited(), [], []
    while proposal := bench.searcher().propose(trials):
        expected = bench.searcher().expect_steps(trials)
        fitting = [expected[trial.number] for trial in trials if trial.fits]
        if proposal.reason not in GIVEN and fitting:
            leads.append(min(fitting) / proposal.prediction.step - 1)
            side = "faster" if leads[-1] > 0 else "slower"
            fits = proposal.prediction.fits
            assert proposal.reason == f"{fits:.0%} to fit, {abs(leads[-1]):.1%} {side} than the best"
        trials.append(bench.try_out(proposal, len(trials), reference_seconds=1.0))
    assert min(leads) < 0


@pytest.mark.parametrize("seed", range(6))
def test_more_than_what_fits_is_never_recomputed(make_limited, seed):
    """A config that fits needs no plan more that takes time: beyond presets, none is tried that has all of its rows."""
    bench = make_limited(seed=seed, share=0.5)
    trials = bench.run(budget=100)
    shares = simulate(bench, configs_of(trials)).recompute_share
    for trial in trials:
        if trial.reason not in GIVEN:
            fitting = [other for other in trials[: trial.number] if other.fits]
            within = [other.number for other in fitting if trial.config.choices >= other.config.choices]
            assert all(shares[trial.number] <= shares[number] + MARGIN for number in within)


@pytest.mark.parametrize("share", SHARES)
def test_a_search_ends_when_nothing_is_left_to_gain(benches, share):
    """Long before all configs are tried, whatever the budget, and no config is tried twice."""
    for bench in benches:
        bench.limit_to(share)
        configs = configs_of(bench.run(budget=1000))
        assert len(configs) < 60
        assert len(set(configs)) == len(configs)


def test_a_search_ends_where_nothing_can_fit(make_profiled):
    """A limit below what the process holds at rest needs no more than the presets."""
    bench = make_profiled(runs_out=True)
    bench.limit_bytes = 0
    assert set(configs_of(bench.run(budget=1000))) == set(bench.space.presets.values())


@pytest.mark.parametrize("runs_out", [False, True])
def test_the_next_config_depends_on_the_trials_alone(make_limited, runs_out):
    """A new searcher that is given the first trials proposes what the old one did, for the same reason."""
    bench = make_limited(runs_out=runs_out)
    trials = bench.run()
    for count, trial in enumerate(trials):
        proposal = bench.searcher().propose(trials[:count])
        assert (proposal.config, proposal.reason) == (trial.config, trial.reason)
        assert proposal.prediction == trial.prediction
    assert bench.searcher().propose(trials) is None


@pytest.mark.parametrize(
    "reference_seconds", [lambda _number: 1.0, lambda number: 2.0 if number < 4 else 8.0], ids=["steady", "slowing"]
)
def test_a_machine_that_slows_down_changes_nothing(make_limited, reference_seconds):
    """Step times count beside the reference's of the same minutes."""
    bench = make_limited()
    assert configs_of(bench.run(reference_seconds=reference_seconds)) == configs_of(bench.run())


def test_without_a_reference_the_best_is_found_all_the_same(benches):
    """Where the batch does not run without recompute, times are compared with each other."""
    for bench in benches:
        bench.limit_to(0.4)
        trials = bench.run(reference_seconds=lambda _number: None)
        assert bench.found_share(trials) > 0.98


def test_what_was_expected_comes_with_each_proposal(make_limited):
    """Intervals hold their expectation, and most of what is then measured."""
    benches = [make_limited(seed=seed) for seed in SEEDS]
    within = []
    for bench, trial in [(each, trial) for each in benches for trial in each.run()]:
        told, peak = trial.prediction, trial.measurement.peak_bytes
        assert told.peak_low < told.peak_bytes < told.peak_high
        assert told.step_low < told.step < told.step_high
        assert 0 <= told.fits <= 1
        within.append(told.peak_low < peak < told.peak_high)
        within.append(told.step_low < bench.step_seconds(trial.config) < told.step_high)
    assert sum(within) >= 0.8 * len(within)


def test_a_plan_that_crashes_is_avoided(make_limited):
    """Once it ended the process alone, no config has it any more, and the rest is searched as ever."""
    bench = make_limited(seed=2)
    choice = bench.space.plans[0].choices[0]
    bench.crashing = choice.site
    alone = bench.tried(Config(), Config(frozenset([choice])))
    trials = list(alone)
    while proposal := bench.searcher().propose(trials):
        trials.append(bench.try_out(proposal, len(trials), reference_seconds=1.0))
    later = [trial.config for trial in trials[2:] if trial.reason not in GIVEN]
    assert later
    assert not any(choice in config.choices for config in later)


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_that_crashes_in_company_is_found_and_avoided(make_limited, seed):
    """It was never alone: a few more failures tell which of a mix's plans is to blame, and the rest is searched."""
    bench = make_limited(seed=seed, share=0.7)
    within = [config for config, (peak_bytes, _) in bench.landscape.items() if peak_bytes <= bench.limit_bytes]
    best = min(within, key=bench.step_seconds)
    bench.crashing = next(iter(best.choices)).site
    trials = bench.tried(Config())
    while proposal := bench.searcher().propose(trials):
        trials = [*trials, bench.try_out(proposal, len(trials), reference_seconds=1.0)]
    failures = [trial for trial in trials if trial.measurement.outcome is Outcome.CRASH and trial.reason not in GIVEN]
    assert len(failures) <= 3
    sound = [config for config in within if not any(on.site == bench.crashing for on in config.choices)]
    found = min(bench.step_seconds(trial.config) for trial in trials if trial.fits)
    assert found <= 1.02 * min(map(bench.step_seconds, sound))


def test_a_prior_tells_which_plans_are_slow(make_limited):
    """Trials of a like problem are worth trials of this one: the first step is as good with them, or better."""
    bench = make_limited(share=0.3, noise=0.0)
    told = bench.tried(*list(bench.landscape)[:60])
    with_prior, without = bench.run(prior=told), bench.run()
    assert len(with_prior) <= len(without)
    assert bench.found_share(with_prior) > 0.99


def test_a_limit_that_nothing_can_hold_ends_the_search_early(make_limited):
    """Where the chance that anything fits is next to none, it is found out what would fit, and that is all."""
    bench = make_limited(-0.5)
    trials = bench.run(budget=40)
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


def test_one_measurement_is_expected_to_have_its_noise(make_limited):
    """Without it nine in ten of the measurements would not lie in what are called intervals of 90 %."""
    trials = make_limited(noise=0.04).run(budget=20)
    told = [(1 / trial.relative_throughput, trial.prediction) for trial in trials[1:] if trial.prediction is not None]
    assert sum(told.step_low <= step <= told.step_high for step, told in told) >= 0.8 * len(told)


def test_without_a_reference_no_step_time_is_promised(make_limited):
    """What is relative to whichever trial was the fastest so far cannot be held against a measurement later."""
    trials = make_limited().run(budget=6, reference_seconds=lambda _number: None)
    assert {trial.prediction.step for trial in trials[1:] if trial.prediction is not None} == {None}
    assert all(trial.prediction.peak_low < trial.prediction.peak_bytes for trial in trials[2:])


@pytest.mark.parametrize("share", SHARES)
def test_what_has_to_fit_for_sure_fits(benches, share):
    """Where only sure configs may be tried, none breaks the limit but the one that should need least."""
    for bench in benches:
        bench.limit_to(share)
        trials = bench.run(budget=8, least_fit=0.999)
        assert trials
        broken = [trial for trial in trials if not trial.fits]
        assert all(trial.reason == "least peak" for trial in broken)
