"""What a trial costs, and that both searches weigh it."""

import dataclasses

import pytest

from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.plans import Config
from autorecompute.search import GreedySearcher
from autorecompute.search.costs import TrialCosts, needs_nothing

NONE, ONE, TWO = Config(), Config.parse(["a:b:1"]), Config.parse(["a:b:2"])
COSTLY = 60.0
"""Seconds that a compilation takes in these tests, beside steps of one second."""


def by_itself(config):
    """Each config is compiled by itself."""
    return frozenset([config.hash])


def by_choice(config):
    """Choices are compiled, and configs share them."""
    return frozenset(str(choice) for choice in config.choices)


def trial(config, compile_seconds, number=0, outcome=Outcome.OK):
    """A trial of four seconds beside its compilation."""
    measured = Measurement(
        outcome=outcome,
        peak_bytes=1,
        samples=1,
        step_seconds=(1.0,),
        warmup_seconds=compile_seconds + 2,
        compile_seconds=compile_seconds,
    )
    return Trial(number=number, config=config, description="", reason="", measurement=measured, overhead_seconds=1.0)


def test_costs_are_those_that_were_measured():
    """Compilations beside all else that a trial takes; the first one also starts the compiler."""
    costs = TrialCosts([trial(NONE, 80), trial(ONE, 8)], by_itself)
    assert (costs.relative(TWO), costs.relative(ONE)) == (3, 1)
    assert TrialCosts([trial(NONE, 80)], by_itself).relative(TWO) == 21


def test_what_configs_share_is_made_once():
    """Two parts cost twice as much as one, and nothing where others had them made."""
    costs = TrialCosts([trial(NONE, 0), trial(Config.parse(["a:b"]), 20), trial(Config.parse(["c:d"]), 8)], by_choice)
    assert costs.relative(Config.parse(["a:b", "c:d"])) == 1
    assert costs.relative(Config.parse(["a:b", "e:f"])) == 3
    assert costs.relative(Config.parse(["e:f", "g:h"])) == 5


def test_a_trial_that_failed_has_made_nothing_ready():
    """It may have ended before it was compiled."""
    failed = dataclasses.replace(trial(ONE, 8).measurement, outcome=Outcome.CRASH)
    costs = TrialCosts([trial(NONE, 8), dataclasses.replace(trial(ONE, 8), measurement=failed)], by_itself)
    assert costs.relative(ONE) == 3


def test_without_needs_all_trials_cost_the_same():
    """Nor where nothing is known yet."""
    assert TrialCosts([trial(NONE, 80), trial(ONE, 8)], needs_nothing).relative(TWO) == 1
    assert TrialCosts([], by_itself).relative(TWO) == 1


def compiled(trial, ready):
    """The trial as that of a config that takes a minute to compile, unless it is among those that are ready."""
    seconds = 0.0 if trial.config in ready else COSTLY
    measurement = dataclasses.replace(trial.measurement, compile_seconds=seconds, warmup_seconds=seconds)
    return dataclasses.replace(trial, measurement=measurement)


@pytest.fixture
def search(make_profiled):
    """Runs a whole search on a bench of seven plans; gives the bench and the trials."""

    def search(seed, needs):
        bench = make_profiled(seed=seed)
        bench.limit_to(0.4)
        searcher, trials = bench.searcher(needs=needs), []
        while len(trials) < 40 and (proposal := searcher.propose(trials)):
            trials.append(compiled(bench.try_out(proposal, len(trials), reference_seconds=1.0), ()))
        return bench, trials

    return search


@pytest.mark.parametrize("seed", range(3))
def test_fewer_configs_are_compiled_where_that_takes_long(search, seed):
    """What little there is left to gain is not worth a minute each, and the answer is about as fast."""
    bench, many = search(seed, needs_nothing)
    _, few = search(seed, by_itself)
    assert len(few) < len(many)
    assert bench.found_share(few) > 0.98


def test_what_is_compiled_already_is_tried_before_what_is_not(make_profiled):
    """Two candidates may gain about as much; the one that is ready takes its place before the other."""
    bench = make_profiled(seed=1)
    bench.limit_to(0.4)
    trials = [compiled(one, ()) for one in bench.tried(*dict.fromkeys(bench.space.presets.values()))]
    first = bench.searcher(needs=by_itself).propose(trials).config
    second = bench.searcher(needs=by_itself).propose(trials, claimed=[first]).config

    def needs(config):
        return frozenset() if config == second else by_itself(config)

    assert bench.searcher(needs=needs).propose(trials).config == second


def test_the_greedy_search_takes_the_ready_one_of_its_steps(make_bench):
    """Of the configs that should fit and be faster, the one that gains most for its time."""
    bench = make_bench(plans=7)
    bench.limit_to(0.4)
    trials, searcher = [], GreedySearcher(bench.space, budget=40, limit_bytes=bench.limit_bytes, needs=by_itself)
    while (proposal := searcher.propose(trials)) and not proposal.reason.startswith("trial "):
        trials.append(compiled(bench.try_out(proposal, len(trials), reference_seconds=1.0), ()))
    later = searcher.propose(trials, claimed=[proposal.config])

    def needs(config):
        return frozenset() if config == later.config else by_itself(config)

    ready = GreedySearcher(bench.space, budget=40, limit_bytes=bench.limit_bytes, needs=needs)
    assert ready.propose(trials).config == later.config
