import random
import time

import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.ranking import RaceEnd
from autorecompute.trials.effort import Effort
from autorecompute.tuning.answer.finalists import Finalist
from autorecompute.tuning.answer.race import LOOKS, MOST_ROUNDS, race
from autorecompute.units import MIB

COSTS = {0: 0.04, 1: 0.03, 2: 0.05}
"""What each finalist's plan adds to a step, as a share."""


@pytest.fixture
def configs(make_space):
    return [Config.of([plan]) for plan in make_space().plans[:3]]


@pytest.fixture
def make_standings(configs, make_trial):
    def make(*peaks):
        return [
            Finalist(trial=make_trial(config, number=number, peak_bytes=peak * MIB))
            for number, (config, peak) in enumerate(zip(configs, peaks, strict=False))
        ]

    return make


@pytest.fixture
def make_costly(make_bench, configs):
    def make(*costs):
        bench, shares = make_bench(), dict(zip(configs, costs, strict=True))
        bench.seconds = lambda config, _batch: 1 + shares.get(config, 0)
        return bench

    return make


def order_of(raced):
    return [entry.trial.number for entry in raced.standings]


def rounds_of(raced):
    return {entry.trial.number: len(entry.rounds) for entry in raced.standings}


@pytest.mark.parametrize("has_reference", [True, False])
def test_the_fastest_wins(make_bench, make_standings, has_reference):
    raced = race(make_bench(), make_standings(3, 2, 2), has_reference=has_reference)
    assert raced.standings[0].trial.number == 1
    assert (raced.ranking.end, raced.ranking.rounds) == (RaceEnd.RANKED, LOOKS[0])
    for entry in raced.standings:
        expected = 1 / (1 + COSTS[entry.trial.number]) if has_reference else None
        assert entry.relative_throughput == pytest.approx(expected)


def test_who_is_slower_by_less_than_a_tie_wins_with_the_lower_peak(make_bench, make_standings):
    raced = race(make_bench(), make_standings(3, 4, 2), has_reference=True)
    assert order_of(raced) == [2, 1, 0]
    assert raced.ranking.end is RaceEnd.TIE
    assert raced.ranking.rivals == tuple(entry.trial.description for entry in raced.standings[1:])


def test_a_tie_is_not_handed_on(make_costly, make_standings):
    bench = make_costly(0, 0.015, 0.03)
    assert order_of(race(bench, make_standings(3, 2, 1), has_reference=True)) == [1, 0, 2]


def test_a_machine_that_slows_down_favours_no_one(make_bench, make_standings):
    bench = make_bench()
    bench.pace = lambda number: 1.0 + number // 4 % 3
    raced = race(bench, make_standings(3, 2, 2), has_reference=True)
    assert (raced.standings[0].trial.number, raced.ranking.rounds) == (1, LOOKS[0])
    for entry in raced.standings:
        assert entry.ratios == pytest.approx([1 / (1 + COSTS[entry.trial.number])] * len(entry.rounds))


def test_noise_takes_more_rounds(make_costly, make_standings):
    chance = random.Random(1)
    bench = make_costly(0.1, 0, 0.1)
    bench.pace = lambda _: chance.lognormvariate(0, 0.01)
    raced = race(bench, make_standings(2, 2, 2), has_reference=True)
    assert (raced.standings[0].trial.number, raced.ranking.end) == (1, RaceEnd.RANKED)
    assert LOOKS[0] < raced.ranking.rounds < LOOKS[-1]


def test_who_is_beaten_runs_no_further(make_costly, make_standings):
    chance = random.Random(1)
    bench = make_costly(0, 0.02, 1)
    bench.pace = lambda _: chance.lognormvariate(0, 0.01)
    raced = race(bench, make_standings(2, 1, 1), has_reference=True)
    rounds = rounds_of(raced)
    assert raced.standings[-1].trial.number == 2
    assert rounds[2] < rounds[0] == rounds[1] == raced.ranking.rounds


def test_what_chance_alone_decides_stays_undecided(make_bench, make_standings):
    chance = random.Random(1)
    bench = make_bench()
    bench.pace = lambda _: chance.lognormvariate(0, 0.5)
    raced = race(bench, make_standings(2, 2), has_reference=True)
    assert (raced.ranking.end, raced.ranking.rounds) == (RaceEnd.UNDECIDED, LOOKS[-1])
    assert raced.ranking.rivals == (raced.standings[1].trial.description,)


def test_a_deadline_ends_the_race_after_the_first_look(make_bench, make_standings):
    chance = random.Random(1)
    bench = make_bench()
    bench.pace = lambda _: chance.lognormvariate(0, 0.5)
    raced = race(bench, make_standings(2, 2), has_reference=True, deadline_seconds=time.monotonic())
    assert (raced.ranking.end, raced.ranking.rounds) == (RaceEnd.UNDECIDED, LOOKS[0])


def test_no_place_in_the_round_belongs_to_anyone(make_bench, make_standings):
    chance = random.Random(1)
    bench = make_bench()
    bench.pace = lambda _: chance.lognormvariate(0, 0.5)
    race(bench, make_standings(2, 2, 2), has_reference=True)
    measured = [config for config, _ in bench.measured[: 4 * LOOKS[0]]]
    first, second, third = (measured[start : start + 4] for start in (0, 4, 8))
    assert second == first[::-1]
    assert third != second
    assert all(len(set(order)) == 4 for order in (first, second, third))


def test_all_samples_are_kept(make_bench, make_standings):
    bench = make_bench()
    raced = race(bench, make_standings(3, 2, 2), has_reference=True)
    steps = sum(effort.steps for config, effort in bench.measured if not config.is_none)
    assert sum(len(run.step_seconds) for entry in raced.standings for run in entry.rounds) == steps
    assert all(run.reference_seconds for entry in raced.standings for run in entry.rounds)


def test_a_race_that_was_stopped_goes_on_as_it_was(make_costly, make_standings, configs, make_measurement):
    chance = random.Random(1)
    told = []
    bench = make_costly(0, 0.02, 1)
    bench.pace = lambda _: chance.lognormvariate(0, 0.01)
    bench.broken[Config()] = make_measurement(Outcome.CRASH)
    standings = make_standings(2, 1, 1)
    whole = race(bench, standings, has_reference=True, after_round=told.append)
    known = next(raced for raced in told if raced.rounds == LOOKS[0] + 1)
    bench.measured.clear()
    raced = race(bench, standings, has_reference=True, earlier=known)
    assert rounds_of(raced)[2] == rounds_of(whole)[2] == LOOKS[0]
    assert {config for config, _ in bench.measured} == set(configs[:2])
    assert len(bench.measured) == 2 * (raced.ranking.rounds - known.rounds)


def crowd(bench, is_busy):
    bench.others = lambda number: 0.6 if is_busy(number // 4) else 0.05
    bench.pace = lambda number: 1 + 2 * (is_busy(number // 4) and number % 2)


def test_a_disturbed_round_is_made_up_for(make_bench, make_standings):
    bench = make_bench()
    crowd(bench, lambda number: number in {0, 2, 3})
    raced = race(bench, make_standings(3, 2, 2), has_reference=True)
    assert raced.standings[0].trial.number == 1
    assert (raced.ranking.end, raced.ranking.rounds) == (RaceEnd.RANKED, LOOKS[0] + 3)
    assert raced.ranking.disturbed == raced.disturbed == 3
    for entry in raced.standings:
        assert entry.relative_throughput == pytest.approx(1 / (1 + COSTS[entry.trial.number]))


def test_a_host_that_is_always_busy_leaves_the_race_undecided(make_bench, make_standings):
    bench = make_bench()
    crowd(bench, lambda _: True)
    raced = race(bench, make_standings(3, 2, 2), has_reference=True)
    assert raced.ranking.end is RaceEnd.UNDECIDED
    assert raced.ranking.disturbed == raced.ranking.rounds == MOST_ROUNDS
    assert order_of(raced) == [1, 0, 2]
    assert raced.standings[0].relative_throughput == pytest.approx(1 / (1 + COSTS[1]))
    assert f"{MOST_ROUNDS} of {MOST_ROUNDS} rounds were disturbed" in raced.ranking.sentence


def test_a_busy_host_does_not_race_beyond_the_deadline(make_bench, make_standings):
    bench = make_bench()
    crowd(bench, lambda _: True)
    raced = race(bench, make_standings(2, 2), has_reference=True, deadline_seconds=time.monotonic())
    assert (raced.ranking.end, raced.ranking.rounds) == (RaceEnd.UNDECIDED, LOOKS[0])


def test_marks_are_kept_with_their_round(make_bench, make_standings, configs, make_measurement):
    bench = make_bench()
    bench.broken[configs[1]] = make_measurement(marks=("host busy",))
    raced = race(bench, make_standings(2, 2), has_reference=True)
    assert {entry.trial.number: entry.rounds[0].marks for entry in raced.standings} == {0: (), 1: ("host busy",)}


@pytest.mark.parametrize("crowded", [False, True])
def test_a_finalist_that_raced_with_nobody_is_not_called_ranked(make_bench, make_standings, crowded):
    bench = make_bench()
    crowd(bench, lambda _: crowded)
    raced = race(bench, make_standings(2), has_reference=True, deadline_seconds=time.monotonic())
    assert (raced.ranking.end, raced.is_over) == (RaceEnd.ALONE, True)


@pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.CRASH, Outcome.TIMEOUT])
def test_a_finalist_that_fails_is_out(make_bench, make_standings, configs, make_measurement, outcome):
    bench = make_bench()
    bench.broken[configs[1]] = make_measurement(outcome)
    raced = race(bench, make_standings(3, 2, 2), has_reference=True)
    assert sorted(order_of(raced)) == [0, 2]
    assert [entry.trial.number for entry in raced.failed] == [1]
    assert sum(config == configs[1] for config, _ in bench.measured) == 1


def test_a_finalist_that_diverges_is_out(make_bench, make_standings, configs, make_measurement):
    bench = make_bench()
    bench.broken[configs[1]] = make_measurement(Outcome.DIVERGED, step_seconds=(0.1,), peak_bytes=1, samples=1)
    assert sorted(order_of(race(bench, make_standings(3, 2, 2), has_reference=True))) == [0, 2]


def test_a_race_that_nobody_finishes_has_no_winner(make_bench, make_standings, configs, make_measurement):
    bench = make_bench()
    bench.broken.update({config: make_measurement(Outcome.OOM) for config in configs})
    raced = race(bench, make_standings(3, 2, 2), has_reference=True)
    assert (raced.standings, raced.ranking) == ((), None)


def test_a_reference_that_fails_does_not_stop_the_race(make_bench, make_standings, make_measurement):
    bench = make_bench()
    bench.broken[Config()] = make_measurement(Outcome.CRASH)
    raced = race(bench, make_standings(3, 2, 2), has_reference=True)
    assert raced.standings[0].trial.number == 1
    assert sum(config.is_none for config, _ in bench.measured) == 1


def test_no_recompute_can_be_a_finalist_and_the_reference(make_bench, make_trial, configs):
    bench = make_bench()
    entries = [Finalist(trial=make_trial(config, number=number)) for number, config in enumerate([Config(), *configs])]
    raced = race(bench, entries, has_reference=True)
    assert raced.standings[0].trial.config.is_none
    assert raced.standings[0].relative_throughput == 1
    assert sum(config.is_none for config, _ in bench.measured) == raced.ranking.rounds


def test_who_is_over_the_limit_in_a_round_is_out(make_bench, make_standings):
    standings = make_standings(3, 2, 2)
    bench = make_bench()
    peaks = [bench.measure(entry.trial.config, Effort()).peak_bytes for entry in standings]
    raced = race(bench, standings, has_reference=True, limit_bytes=max(peaks) - 1)
    over = [entry.trial for entry, peak in zip(standings, peaks, strict=True) if peak == max(peaks)]
    assert [entry.trial for entry in raced.over_limit] == over
    assert {entry.trial.number for entry in raced.standings}.isdisjoint(trial.number for trial in over)
