"""The steps from one config to others."""

import pytest

from autorecompute.plans import Config
from autorecompute.search.moves import moves_from
from autorecompute.search.peaks import PeakModel
from autorecompute.search.times import TimeModel


@pytest.fixture
def make_moves(make_bench):
    """Builds the moves from one config, after it and some others were tried, and the models that rate them."""

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
    """Every config that differs by one plan is within reach, with a fit or without."""
    base, moves, _, _ = make_moves((0, 1, 2), spare_bytes=spare_bytes)
    assert len({config for config in moves if len(config.choices ^ base.choices) == 1}) == 6


def test_growth_goes_as_far_as_it_takes(make_moves):
    """From a config far above the limit several plans are switched on at once, until the last just makes it fit."""
    _, moves, peaks, _ = make_moves((), *SINGLES, spare_bytes=-400)
    longest = max(moves, key=lambda config: len(config.choices))
    assert len(longest.choices) > 1
    assert peaks.excess_bytes(longest) == 0
    assert all(peaks.excess_bytes(config) > 0 for config in moves if config.choices < longest.choices)


def test_pruning_stops_at_the_limit(make_moves):
    """From a config far below the limit several plans are switched off at once, none beyond what memory allows."""
    all_on = tuple(range(6))
    all_but = [tuple(other for other in all_on if other != index) for index in all_on]
    base, moves, peaks, space = make_moves(all_on, (), *SINGLES, *all_but, spare_bytes=150)
    savings = {plan.choices[0]: peaks.saving_bytes(plan, base) for plan in space.plans}
    several = [config for config in moves if len(base.choices - config.choices) > 1]
    lost = [sum(savings[row] for row in base.choices - config.choices) for config in several]
    assert several
    assert max(lost) <= 150


def test_the_other_option_takes_the_place_of_the_first(make_moves):
    """Switching a compromise on switches the full recompute of its subgraph off."""
    base, moves, _, _ = make_moves((0,), spare_bytes=-1, compromises=1)
    (choice,) = base.choices
    others = [config for config in moves if any(other.site == choice.site for other in config.choices - base.choices)]
    assert others
    assert all(choice not in config.choices for config in others)


def test_nothing_starts_from_an_unknown_peak(make_bench):
    """A config that crashed, or was never tried, leads nowhere."""
    bench = make_bench(plans=6)
    trials = bench.tried(Config())
    times, peaks = TimeModel(bench.space, trials), PeakModel(bench.space, trials, bench.limit_bytes)
    assert list(moves_from(bench.space.all_on, bench.space, times, peaks)) == []
