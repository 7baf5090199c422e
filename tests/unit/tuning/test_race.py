"""Deciding between finalists."""

from __future__ import annotations

import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.tuning.race import ROUNDS, Standing, finalists, race, rank


@pytest.fixture
def configs(make_space):
    """Three configs of one plan, which costs 4, 3 and 5 % of a step."""
    return [Config.of([plan]) for plan in make_space().plans[:3]]


@pytest.fixture
def standings(configs, make_trial):
    """The three as finalists, with equal figures so far."""
    return [Standing(trial=make_trial(config, number=number)) for number, config in enumerate(configs)]


def order_of(standings):
    """The numbers of the trials, first to last."""
    return [standing.trial.number for standing in standings]


def test_only_what_fits_is_a_finalist_and_the_fastest_comes_first(make_trial):
    """Finalists are sorted by throughput relative to the reference of their own minutes, not by step time."""
    trials = [
        make_trial(number=0, reference_seconds=1.0, step_seconds=(1.25,)),
        make_trial(number=1, reference_seconds=2.0, step_seconds=(2.1,)),
        make_trial(number=2, outcome=Outcome.OVER_LIMIT, reference_seconds=1.0, step_seconds=(1.0,)),
        make_trial(number=3, outcome=Outcome.OOM),
    ]
    assert order_of(finalists(trials)) == [1, 0]


def test_without_a_reference_the_step_time_decides(make_trial):
    """Where the batch does not run without recompute, the shortest step comes first."""
    trials = [make_trial(number=0, step_seconds=(0.5,)), make_trial(number=1, step_seconds=(0.25,))]
    assert order_of(finalists(trials)) == [1, 0]


def test_a_trial_without_a_reference_has_no_advantage(make_trial):
    """A config half as fast is not first because the reference failed beside it."""
    trials = [
        make_trial(number=0, reference_seconds=0.09, step_seconds=(0.1,)),
        make_trial(number=1, reference_seconds=None, step_seconds=(0.2,)),
    ]
    assert order_of(finalists(trials)) == [0, 1]


@pytest.mark.parametrize(
    ("ratios_and_peaks", "order"),
    [
        ([(1.0, 10), (0.99, 5)], [1, 0]),
        ([(1.0, 10), (0.97, 5)], [0, 1]),
        ([(1.0, 10), (0.99, 5), (0.975, 1)], [1, 0, 2]),
        ([(0.9, 10), (0.9, 11), (0.9, 9)], [2, 0, 1]),
        ([(0.5, 1), (0.9, 10)], [1, 0]),
        ([], []),
    ],
)
def test_a_tie_goes_to_the_lower_peak(make_trial, ratios_and_peaks, order):
    """Closer than the tie's share the peak decides, among those that tie with the fastest of the rest."""
    entries = [
        Standing(trial=make_trial(number=number, peak_bytes=peak), ratios=(ratio,))
        for number, (ratio, peak) in enumerate(ratios_and_peaks)
    ]
    assert order_of(rank(entries)) == order


@pytest.mark.parametrize("has_reference", [True, False])
def test_the_fastest_wins(make_bench, standings, has_reference):
    """On a machine that keeps its pace the race ends in the true order, with or without a reference."""
    bench = make_bench()
    costs = {0: 0.04, 1: 0.03, 2: 0.05}
    raced = race(bench, standings, has_reference=has_reference)
    assert raced[0].trial.number == 1
    if has_reference:
        for entry in raced:
            assert entry.relative_throughput == pytest.approx(1 / (1 + costs[entry.trial.number]))


def test_a_machine_that_slows_down_favours_no_one(make_bench, standings):
    """A drift common to a round cancels: each round's figures are relative to its own reference."""
    steady, drifting = make_bench(), make_bench()
    drifting.pace = lambda number: 1.0 + number // (len(standings) + 1)
    raced = race(drifting, standings, has_reference=True)
    assert order_of(raced) == order_of(race(steady, standings, has_reference=True))
    for entry in raced:
        assert entry.ratios == pytest.approx((entry.ratios[0],) * ROUNDS)


@pytest.mark.parametrize("count", [2, 3])
def test_a_bad_place_in_the_round_falls_on_each_in_turn(make_bench, standings, count):
    """What slows down whoever runs right after the reference does so once for each of three finalists."""
    bench = make_bench()
    bench.pace = lambda number: 1.5 if number % (count + 1) == 1 else 1.0
    raced = race(bench, standings[:count], has_reference=True)
    firsts = [config for index, (config, _) in enumerate(bench.measured) if index % (count + 1) == 1]
    assert len(set(firsts)) == count
    if count == ROUNDS:
        assert all(entry.relative_throughput > 0.9 for entry in raced)


@pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.CRASH, Outcome.TIMEOUT])
def test_a_finalist_that_fails_is_out(make_bench, standings, configs, make_measurement, outcome):
    """Who breaks in a round is not ranked, and the others are."""
    bench = make_bench()
    bench.broken[configs[1]] = make_measurement(outcome)
    raced = race(bench, standings, has_reference=True)
    assert sorted(order_of(raced)) == [0, 2]
    assert all(len(entry.ratios) == ROUNDS for entry in raced)


def test_a_finalist_that_diverges_is_out(make_bench, standings, configs, make_measurement):
    """A loss that is no number any more is a failure too."""
    bench = make_bench()
    bench.broken[configs[1]] = make_measurement(Outcome.DIVERGED, step_seconds=(0.1,), peak_bytes=1, samples=1)
    assert sorted(order_of(race(bench, standings, has_reference=True))) == [0, 2]


def test_a_race_that_nobody_finishes_has_no_winner(make_bench, standings, configs, make_measurement):
    """When all finalists break there is no ranking, and no error."""
    bench = make_bench()
    bench.broken.update({config: make_measurement(Outcome.OOM) for config in configs})
    assert race(bench, standings, has_reference=True) == []


def test_a_reference_that_fails_once_does_not_stop_the_race(make_bench, standings, make_measurement):
    """A round without its reference still counts in the other rounds' medians."""
    bench = make_bench()
    bench.broken[Config()] = make_measurement(Outcome.CRASH)
    raced = race(bench, standings, has_reference=True)
    assert len(raced) == 3
    assert all(len(entry.step_seconds) == ROUNDS for entry in raced)
