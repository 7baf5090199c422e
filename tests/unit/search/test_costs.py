import dataclasses

import pytest

from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.plans import Config
from autorecompute.search.surrogate import needs_nothing, relative_costs

NONE, ONE, TWO = Config(), Config.parse(["a:b:1"]), Config.parse(["a:b:2"])
COSTLY = 60.0
"""Seconds that a compilation takes in these tests, beside steps of one second."""


def by_itself(config):
    return frozenset([config.hash])


def trial(config, compile_seconds, outcome=Outcome.OK):
    taken = {"warmup_seconds": compile_seconds + 2, "compile_seconds": compile_seconds}
    measured = Measurement(outcome=outcome, peak_bytes=1, samples=1, step_seconds=(1.0,), **taken)
    return Trial(number=0, config=config, description="", reason="", measurement=measured, overhead_seconds=1.0)


def test_costs_are_those_that_were_measured_and_what_configs_share_is_made_once():
    """A trial that failed may have ended before it was compiled; without needs all trials cost the same."""
    cost_of = relative_costs([trial(NONE, 80), trial(ONE, 8)], by_itself)
    assert (cost_of(TWO), cost_of(ONE)) == (3, 1)
    assert relative_costs([trial(NONE, 80)], by_itself)(TWO) == 21
    known = [trial(NONE, 0), trial(Config.parse(["a:b"]), 20), trial(Config.parse(["c:d"]), 8)]
    cost_of = relative_costs(known, lambda config: frozenset(map(str, config.choices)))
    assert cost_of(Config.parse(["a:b", "c:d"])) == 1
    assert cost_of(Config.parse(["a:b", "e:f"])) == 3
    assert cost_of(Config.parse(["e:f", "g:h"])) == 5
    cost_of = relative_costs([trial(NONE, 8), trial(ONE, 8, Outcome.CRASH)], by_itself)
    assert cost_of(ONE) == 3
    assert relative_costs([trial(NONE, 80), trial(ONE, 8)], needs_nothing) is None
    assert relative_costs([], by_itself) is None


def compiled(trial):
    measurement = dataclasses.replace(trial.measurement, compile_seconds=COSTLY, warmup_seconds=COSTLY)
    return dataclasses.replace(trial, measurement=measurement)


@pytest.mark.parametrize("seed", range(3))
def test_fewer_configs_are_compiled_where_that_takes_long(make_profiled, seed):
    bench, trials = make_profiled(seed=seed).limit_to(0.4), {}
    for needs in (needs_nothing, by_itself):
        searcher, found = bench.searcher(needs=needs), trials.setdefault(needs, [])
        while len(found) < 40 and (proposal := searcher.propose(found)):
            found.append(compiled(bench.try_out(proposal, len(found))))
    assert len(trials[by_itself]) < len(trials[needs_nothing])
    assert bench.found_share(trials[by_itself]) > 0.98


def takes_the_ready_one(bench, trials):
    """Return True if the second choice is taken where the first one would have to be compiled."""
    first = bench.searcher(needs=by_itself).propose(trials).config
    second = bench.searcher(needs=by_itself).propose(trials, claimed=[first]).config

    def needs(config):
        return frozenset() if config == second else by_itself(config)

    return bench.searcher(needs=needs).propose(trials).config == second


def test_what_is_compiled_already_is_tried_before_what_is_not_by_either_search(make_profiled, make_bench):
    bench = make_profiled(seed=1).limit_to(0.4)
    trials = [compiled(one) for one in bench.tried(*dict.fromkeys(bench.space.presets.values()))]
    assert takes_the_ready_one(bench, trials)
    bench, trials = make_bench(plans=7).limit_to(0.4), []
    while not (proposal := bench.searcher(needs=by_itself).propose(trials)).reason.startswith("trial "):
        trials.append(compiled(bench.try_out(proposal, len(trials))))
    assert takes_the_ready_one(bench, trials)
