import itertools

import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config


@pytest.fixture
def make_limited(make_bench):
    return lambda share=0.4, **fields: make_bench(**{"plans": 9, **fields}).limit_to(share)


def is_step(trial):
    return trial.reason.startswith("trial ")


def is_alone(trial):
    return trial.reason.endswith(" alone")


def is_all_but(trial):
    return trial.reason.startswith("all but ")


def steps_before(trials):
    return list(itertools.takewhile(lambda trial: not is_step(trial), trials))


def configs_of(trials):
    return [trial.config for trial in trials]


@pytest.mark.parametrize(("share", "found"), [(0.25, 0.9), (0.4, 0.98), (0.8, 0.98)])
def test_forty_trials_of_8192_configs_find_one_near_the_best(make_bench, share, found):
    bench = make_bench().limit_to(share)
    trials = bench.run()
    assert bench.found_share(trials) > found
    if share == 0.4:
        assert bench.found_share(trials) > bench.found_share(steps_before(trials)), "the steps gain nothing"


def test_the_opening_is_presets_then_each_plan_alone_then_all_but_each(make_bench):
    bench = make_bench()
    plans, all_on = bench.space.plans, bench.space.all_on
    opening = configs_of(steps_before(bench.run()))
    savings = {Config.of([plan]): plan.saving_bytes for plan in plans}
    assert opening[:2] == [Config(), all_on]
    assert set(opening[2:15]) == set(savings)
    assert set(opening[15:]) == {all_on.without_plan(plan) for plan in plans}
    stated = [savings[config] for config in opening[2:15]]
    assert stated == sorted(stated, reverse=True)
    assert stated[-1] == 0


@pytest.mark.parametrize(("plans", "budget"), [(20, 12), (13, 20)])
def test_a_long_opening_leaves_a_third_of_the_budget(make_bench, plans, budget):
    bench = make_bench(plans=plans)
    bench.limit_bytes //= 2
    opening = steps_before(bench.run(budget=budget))
    assert len(opening) <= budget * 2 / 3 + 0.5
    assert 0 <= sum(map(is_alone, opening)) - sum(map(is_all_but, opening)) <= 1


def test_what_a_cut_opening_left_out_is_tried_in_the_end_and_plans_that_run_out_of_memory_alone_give_way(make_limited):
    """After three of them tell nothing the opening goes on with the configs that leave one out."""
    bench = make_limited(plans=5)
    searcher, trials = bench.searcher(budget=6), []
    while proposal := searcher.propose(trials):
        trials.append(bench.try_out(proposal, len(trials)))
    assert {Config.of([plan]) for plan in bench.space.plans} <= set(configs_of(trials))
    bench = make_limited(plans=13, seed=1, runs_out=True)
    opening = steps_before(bench.run())
    assert sum(map(is_alone, opening)) == 3
    assert sum(map(is_all_but, opening)) == 13


@pytest.mark.parametrize(
    "fields",
    [{}, {"compromises": 3}, {"has_opaque": True}, {"runs_out": True}, {"crashing": "Node4+"}, {"plans": 1}],
    ids=str,
)
def test_no_config_is_tried_twice(make_limited, fields):
    bench = make_limited(**fields)
    configs = configs_of(bench.run(budget=500))
    assert len(configs) < 100
    assert len({config.hash for config in configs}) == len(configs)
    assert configs == [bench.space.normalize(config) for config in configs]


@pytest.mark.parametrize(
    "reference_seconds",
    [lambda _number: None, lambda number: 2.0 if number < 20 else 8.0],
    ids=["no reference", "a machine that slows down"],
)
def test_only_ratios_of_step_times_count(make_limited, reference_seconds):
    bench = make_limited()
    assert configs_of(bench.run(reference_seconds=reference_seconds)) == configs_of(bench.run())


@pytest.mark.parametrize("seed", [1, 2])
def test_a_search_without_a_fit_goes_on_towards_one(make_bench, seed):
    bench = make_bench(seed=seed)
    opening = steps_before(bench.run())
    bench.limit_bytes = min(trial.measurement.peak_bytes for trial in opening) - 1
    assert any(trial.fits for trial in bench.run())


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_a_mix_is_found_where_all_plans_together_need_more_than_none(make_limited, share):
    """As plans of an ORTModule may that hold one another's results."""
    bench, chain = make_limited(share), frozenset({"Node0+", "Node1+", "Node2+"})
    formula, none = bench.peak_bytes, bench.peak_bytes(Config())
    bench.peak_bytes = lambda config: (
        round(1.2 * none) if chain <= {choice.site for choice in config.choices} else formula(config)
    )
    del bench.landscape
    assert bench.peak_bytes(bench.space.all_on) > none
    assert bench.found_share(bench.run()) > 0.98


def test_a_plan_that_crashes_is_avoided_and_a_compromise_takes_the_place_of_a_full_recompute(make_limited):
    bench = make_limited(seed=2, crashing="Node4+")
    trials = bench.run()
    crashed = [trial for trial in trials if trial.measurement.outcome is Outcome.CRASH]
    assert all(is_alone(trial) or trial.config == bench.space.all_on for trial in crashed)
    assert any(trial.fits for trial in trials)
    bench = make_limited(compromises=3, share=0.25)
    choices = [choice for trial in bench.run() if is_step(trial) for choice in trial.config.choices]
    compromised = {choice.site for choice in choices if choice.option == "2"}
    assert compromised & {choice.site for choice in choices if choice.option == "1"}


def test_a_reason_names_the_change_and_where_it_starts(make_limited):
    bench = make_limited()
    trials = bench.run()
    steps = [trial for trial in trials if is_step(trial)]
    assert steps
    for step in steps:
        base = trials[int(step.reason.split()[1])]
        changed = {choice.site for choice in base.config.choices ^ step.config.choices}
        assert changed
        assert all(subgraph in step.reason for subgraph in changed) or f"{len(changed)} plans" in step.reason
