import json
import math
import random
from dataclasses import replace

import pytest

from autorecompute.figures import RaceEnd, Ranking
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.studies.records import RACE_FILE, RoundRecord
from autorecompute.training_job import Device
from autorecompute.tuning.explanations import explain_interruption
from autorecompute.tuning.race import (
    LOOKS,
    MOST_ROUNDS,
    ROUND_EFFORT,
    Finalist,
    Race,
    fitting_finalists,
    gap,
    keep_race,
    race,
    rank,
    read_race,
)
from autorecompute.units import GIB, MIB
from stand_ins.formula import FormulaBench, stop
from stand_ins.sharing import measured
from unit.conftest import build_detection, build_measurement, build_space, build_trial

COSTS = {0: 0.04, 1: 0.03, 2: 0.05}  # what each finalist's plan adds to a step, as a share
CONFIGS = [Config.of([plan]) for plan in build_space().plans[:3]]


def make_standings(*peaks):
    return [
        Finalist(trial=build_trial(config, number=number, peak_bytes=peak * MIB))
        for number, (config, peak) in enumerate(zip(CONFIGS, peaks, strict=False))
    ]


def make_costly(*costs):
    bench, shares = FormulaBench(), dict(zip(CONFIGS, costs, strict=True))
    bench.seconds = lambda config, _batch: 1 + shares.get(config, 0)
    return bench


def numbers_of(standings):
    return [finalist.trial.number for finalist in standings]


def rounds_of(raced):
    return {entry.trial.number: len(entry.rounds) for entry in raced.standings}


def make_uneasy(bench, sigma):
    """Lets the pace of the machine vary by chance."""
    chance = random.Random(1)
    bench.pace = lambda _: chance.lognormvariate(0, sigma)
    return bench


def crowd(bench, is_busy=lambda _: True):
    """Lets others take the processors in the rounds of four measurements that are busy, and slow the odd ones down."""
    bench.others = lambda number: 0.6 if is_busy(number // 4) else 0.05
    bench.pace = lambda number: 1 + 2 * (is_busy(number // 4) and number % 2)
    return bench


@pytest.mark.parametrize(
    ("has_reference", "pace"),
    [(True, lambda _: 1.0), (False, lambda _: 1.0), (True, lambda number: 1.0 + number // 4 % 3)],
    ids=["with a reference", "without", "on a machine that slows down"],
)
def test_the_fastest_wins(has_reference, pace):
    bench = FormulaBench()
    bench.pace = pace
    raced = race(bench, make_standings(3, 2, 2), has_reference=has_reference)
    assert raced.standings[0].trial.number == 1
    assert (raced.ranking.end, raced.ranking.rounds) == (RaceEnd.RANKED, LOOKS[0])
    for entry in raced.standings:
        expected = 1 / (1 + COSTS[entry.trial.number])
        assert entry.relative_throughput == (pytest.approx(expected) if has_reference else None)
        assert not has_reference or entry.ratios == pytest.approx([expected] * len(entry.rounds))


def test_who_is_slower_by_less_than_a_tie_wins_with_the_lower_peak_and_a_tie_is_not_handed_on():
    raced = race(FormulaBench(), make_standings(3, 4, 2), has_reference=True)
    assert numbers_of(raced.standings) == [2, 1, 0]
    assert raced.ranking.end is RaceEnd.TIE
    assert raced.ranking.rivals == tuple(entry.trial.description for entry in raced.standings[1:])
    bench = make_costly(0, 0.015, 0.03)
    assert numbers_of(race(bench, make_standings(3, 2, 1), has_reference=True).standings) == [1, 0, 2]


def test_noise_takes_more_rounds_and_what_chance_alone_decides_stays_undecided():
    bench = make_uneasy(make_costly(0.1, 0, 0.1), 0.01)
    raced = race(bench, make_standings(2, 2, 2), has_reference=True)
    assert (raced.standings[0].trial.number, raced.ranking.end) == (1, RaceEnd.RANKED)
    assert LOOKS[0] < raced.ranking.rounds < LOOKS[-1]
    bench = make_uneasy(FormulaBench(), 0.5)
    raced = race(bench, make_standings(2, 2), has_reference=True)
    assert (raced.ranking.end, raced.ranking.rounds) == (RaceEnd.UNDECIDED, LOOKS[-1])
    assert raced.ranking.rivals == (raced.standings[1].trial.description,)


def test_who_is_beaten_runs_no_further():
    bench = make_uneasy(make_costly(0, 0.02, 1), 0.01)
    raced = race(bench, make_standings(2, 1, 1), has_reference=True)
    rounds = rounds_of(raced)
    assert raced.standings[-1].trial.number == 2
    assert rounds[2] < rounds[0] == rounds[1] == raced.ranking.rounds


def test_no_place_in_the_round_belongs_to_anyone():
    bench = make_uneasy(FormulaBench(), 0.5)
    race(bench, make_standings(2, 2, 2), has_reference=True)
    measured = [config for config, _ in bench.measured[: 4 * LOOKS[0]]]
    first, second, third = (measured[start : start + 4] for start in (0, 4, 8))
    assert second == first[::-1]
    assert third != second
    assert all(len(set(order)) == 4 for order in (first, second, third))


def test_a_race_that_was_stopped_goes_on_as_it_was():
    told, bench = [], make_uneasy(make_costly(0, 0.02, 1), 0.01)
    bench.broken[Config()] = build_measurement(Outcome.CRASH)
    standings = make_standings(2, 1, 1)
    whole = race(bench, standings, has_reference=True, after_round=told.append)
    known = next(raced for raced in told if raced.rounds == LOOKS[0] + 1)
    bench.measured.clear()
    raced = race(bench, standings, has_reference=True, earlier=known)
    assert rounds_of(raced)[2] == rounds_of(whole)[2] == LOOKS[0]
    assert {config for config, _ in bench.measured} == set(CONFIGS[:2])
    assert len(bench.measured) == 2 * (raced.ranking.rounds - known.rounds)


def test_a_disturbed_round_is_made_up_for():
    bench = crowd(FormulaBench(), lambda number: number in {0, 2, 3})
    raced = race(bench, make_standings(3, 2, 2), has_reference=True)
    assert raced.standings[0].trial.number == 1
    assert (raced.ranking.end, raced.ranking.rounds) == (RaceEnd.RANKED, LOOKS[0] + 3)
    assert raced.ranking.disturbed == raced.disturbed == 3
    for entry in raced.standings:
        assert entry.relative_throughput == pytest.approx(1 / (1 + COSTS[entry.trial.number]))


def test_a_host_that_is_always_busy_leaves_the_race_undecided():
    bench = crowd(FormulaBench())
    raced = race(bench, make_standings(3, 2, 2), has_reference=True)
    assert raced.ranking.end is RaceEnd.UNDECIDED
    assert raced.ranking.disturbed == raced.ranking.rounds == MOST_ROUNDS
    assert numbers_of(raced.standings) == [1, 0, 2]
    assert raced.standings[0].relative_throughput == pytest.approx(1 / (1 + COSTS[1]))
    assert f"{MOST_ROUNDS} of {MOST_ROUNDS} rounds were disturbed" in raced.ranking.sentence


def test_no_recompute_can_be_a_finalist_and_the_reference():
    bench = FormulaBench()
    entries = [Finalist(trial=build_trial(config, number=number)) for number, config in enumerate([Config(), *CONFIGS])]
    raced = race(bench, entries, has_reference=True)
    assert raced.standings[0].trial.config.is_none
    assert raced.standings[0].relative_throughput == 1
    assert sum(config.is_none for config, _ in bench.measured) == raced.ranking.rounds


@pytest.mark.parametrize("disturb", [lambda bench: make_uneasy(bench, 0.5), crowd], ids=["noise", "a busy host"])
def test_a_deadline_ends_the_race_after_the_first_look(disturb):
    raced = race(disturb(FormulaBench()), make_standings(2, 2), has_reference=True, deadline_seconds=0.0)
    assert (raced.ranking.end, raced.ranking.rounds) == (RaceEnd.UNDECIDED, LOOKS[0])


@pytest.mark.parametrize("disturb", [lambda bench: bench, crowd], ids=["calm", "a busy host"])
def test_a_finalist_that_raced_with_nobody_is_not_called_ranked(disturb):
    raced = race(disturb(FormulaBench()), make_standings(2), has_reference=True, deadline_seconds=0.0)
    assert (raced.ranking.end, raced.is_over) == (RaceEnd.ALONE, True)


@pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.CRASH, Outcome.TIMEOUT, Outcome.DIVERGED])
def test_a_finalist_that_fails_is_out(outcome):
    bench = FormulaBench()
    bench.broken[CONFIGS[1]] = build_measurement(outcome, step_seconds=(0.1,) * (outcome is Outcome.DIVERGED))
    raced = race(bench, make_standings(3, 2, 2), has_reference=True)
    assert sorted(numbers_of(raced.standings)) == [0, 2]
    assert numbers_of(raced.failed) == [1]
    assert sum(config == CONFIGS[1] for config, _ in bench.measured) == 1


def make_entry(*seconds, number=0, peak=1, reference=1.0):
    rounds = tuple(RoundRecord(step_seconds=(step,), reference_seconds=(reference,)) for step in seconds)
    return Finalist(trial=build_trial(number=number, peak_bytes=peak), rounds=rounds)


def test_only_what_fits_is_a_finalist_and_the_fastest_beside_its_reference_comes_first():
    trials = [
        build_trial(number=0, reference_seconds=1.0, step_seconds=(1.25,)),
        build_trial(number=1, reference_seconds=2.0, step_seconds=(2.1,)),
        build_trial(number=2, outcome=Outcome.OVER_LIMIT, reference_seconds=1.0, step_seconds=(1.0,)),
        build_trial(number=3, outcome=Outcome.OOM),
    ]
    assert numbers_of(fitting_finalists(trials)) == [1, 0]


@pytest.mark.parametrize("reference_seconds", [None, 0.09])
def test_where_a_reference_is_missing_the_step_time_decides(reference_seconds):
    """A config half as fast is not first because the reference failed beside it."""
    slow = build_trial(number=0, step_seconds=(0.2,))
    fast = build_trial(number=1, step_seconds=(0.1,), reference_seconds=reference_seconds)
    assert numbers_of(fitting_finalists([slow, fast])) == [1, 0]


@pytest.mark.parametrize(
    ("speeds_and_peaks", "order"),
    [
        ([(1.0, 10), (0.99, 5)], [0, 1]),
        ([(0.9, 10), (0.9, 11), (0.9, 9)], [2, 0, 1]),
        ([(0.5, 1), (0.9, 10), (0.7, 1)], [1, 2, 0]),
        ([], []),
    ],
)
def test_the_estimate_ranks_and_the_peak_only_where_it_is_equal(speeds_and_peaks, order):
    entries = [make_entry(1 / speed, number=number, peak=peak) for number, (speed, peak) in enumerate(speeds_and_peaks)]
    assert numbers_of(rank(entries)) == order


def test_finalists_are_compared_within_rounds():
    early = make_entry(3.0, 3.0, 3.0, number=0)
    to_the_end = make_entry(3.3, 3.3, 3.3, 1.1, 1.1, number=1)
    assert numbers_of(rank([to_the_end, early])) == [0, 1]


def test_a_spread_holds_the_figure_and_narrows_and_needs_two_rounds():
    few, many = make_entry(1.1, 1.0, 1.2), make_entry(*[1.1, 1.0, 1.2] * 6)
    widths = [entry.spread[1] - entry.spread[0] for entry in (few, many)]
    assert few.spread[0] < few.relative_throughput < few.spread[1]
    assert many.relative_throughput == pytest.approx(1 / 1.1)
    assert widths[1] < widths[0] / 2
    assert make_entry(1.1).spread is None


def test_a_disturbed_round_is_no_evidence_but_an_estimate():
    calm = RoundRecord(step_seconds=(1.25,), cpu_seconds=(2.5,), reference_seconds=(1.0,), reference_cpu_seconds=(2.0,))
    seconds = {"step_seconds": (1.1,), "reference_seconds": (4.4,)}
    busy = RoundRecord(**seconds, cpu_seconds=(2.0,), reference_cpu_seconds=(1.0,), is_disturbed=True)
    trial = build_trial()
    mixed, disturbed = (Finalist(trial=trial, rounds=rounds) for rounds in ((busy, calm, busy, calm), (busy, busy)))
    assert mixed.relative_throughput == 0.8
    assert mixed.spread == pytest.approx((0.8, 0.8))
    assert (disturbed.relative_throughput, disturbed.spread) == (0.5, None)


def test_rounds_end_where_they_do_not_pay():
    bench, asked = make_uneasy(make_costly(0.01, 0, 0.01), 0.02), []

    def pays(gain, seconds):
        asked.append((gain, seconds))
        return len(asked) < 2

    raced = race(bench, make_standings(2, 2, 2), has_reference=True, pays=pays)
    assert (raced.ranking.end, raced.ranking.rounds, raced.is_over) == (RaceEnd.ENOUGH, LOOKS[0], True)
    assert all(0 < gain < 0.01 and seconds > 0 for gain, seconds in asked)


@pytest.mark.parametrize(("kind", "rounds"), [("cuda", LOOKS[0] - 1), ("cpu", LOOKS[0])])
def test_trials_are_the_first_round_on_a_device_that_keeps_its_pace(kind, rounds):
    bench = FormulaBench(build_detection(device=Device(kind=kind, name="It", total_bytes=16 * GIB)))
    entries = [
        Finalist(trial=build_trial(config, number=number, step_seconds=(bench.seconds(config, 32),)))
        for number, config in enumerate(CONFIGS)
    ]
    raced = race(bench, entries, has_reference=False)
    assert raced.ranking.rounds == LOOKS[0]
    assert len(bench.measured) == len(CONFIGS) * rounds


def test_first_rounds_beside_references_of_another_pace_are_compared_by_these():
    def beside(config, seconds, reference_seconds):
        run = RoundRecord(step_seconds=(seconds,), reference_seconds=(reference_seconds,))
        return Finalist(trial=build_trial(config), rounds=(run,))

    fast, slow = beside(CONFIGS[0], 2.2, 2.0), beside(CONFIGS[1], 1.2, 1.0)
    assert gap(slow, fast, 0.01).middle == pytest.approx(math.log(1.2 / 1.1))


def rounds_run(tuning):
    """The finalists' rounds; a reference is measured as long beside trials, too."""
    return [config for config, effort in tuning.bench.measured if effort == ROUND_EFFORT and not config.is_none]


def kept(tuning):
    return json.loads((tuning.folder.path / RACE_FILE).read_text())


@pytest.fixture
def confirming(make_tuning):
    """A session that was stopped while the race's winner was confirmed."""
    return stop(make_tuning(), impatient_at=0)


def test_a_race_is_not_run_again_where_its_winner_was_not_confirmed_any_more(confirming, make_tuning):
    race = kept(confirming)
    tuning = make_tuning()
    best = tuning.run().best
    assert (tuning.tried, rounds_run(tuning)) == ([], [])
    assert best.description == race["standings"][0]["description"]
    assert (best.ranking.end, best.ranking.rounds) == (race["ranking"]["end"], race["ranking"]["rounds"])
    assert kept(tuning) == race
    assert any("in an earlier session" in note for note in tuning.watcher.notes)


def test_a_race_goes_on_after_the_rounds_that_were_run(confirming, tune_in, make_root):
    finalists_count = len(rounds_run(confirming)) // LOOKS[0]
    before_race = len(confirming.bench.measured) - LOOKS[0] * (finalists_count + 1)
    root = make_root()
    stop(tune_in(root), interrupt_at=before_race + 2 * (finalists_count + 1) + 1)
    tuning = tune_in(root)
    best = tuning.run().best
    assert len(rounds_run(tuning)) == finalists_count
    assert best.ranking.rounds == len(kept(tuning)["standings"][0]["rounds"]) == LOOKS[0]
    assert kept(tuning)["standings"] == kept(confirming)["standings"]


def test_what_was_measured_since_is_raced(make_tuning):
    stop(make_tuning(max_trials=8), impatient_at=0)
    tuning = make_tuning()
    tuning.run()
    assert rounds_run(tuning)


def test_who_came_second_is_not_raced_again(confirming, make_tuning):
    winner, second, *_ = (entry["trial"] for entry in kept(confirming)["standings"])
    config_of = {trial.number: trial.config for trial in measured(confirming)}
    rejecting, last = (make_tuning() for _ in range(2))
    rejecting.bench.life_bytes[config_of[winner]] = 300 * MIB
    stop(rejecting, impatient_at=1)
    best = last.run().best
    assert rounds_run(last) == []
    assert (best.config, best.ranking) == (config_of[second], None)


def test_who_won_the_race_and_who_was_over_the_limit_are_known_with_what_fits_best_so_far(confirming):
    trials = measured(confirming)
    raced = read_race(confirming.folder, trials)
    winner, *others = raced.standings
    keep_race(confirming.folder, replace(raced, standings=(winner,), over_limit=tuple(others)), len(trials))
    assert others
    assert read_race(confirming.folder, trials).over_limit == tuple(others)
    fastest, other = fitting_finalists(trials)[:2]
    assert f"not confirmed: {kept(confirming)['standings'][0]['description']}." in explain_interruption(
        confirming.folder
    )
    ranking = Ranking(end=RaceEnd.RANKED, rounds=3, confidence=0.99)
    keep_race(confirming.folder, Race(standings=(other, fastest), ranking=ranking), len(trials))
    assert f"not confirmed: {other.trial.description}." in explain_interruption(confirming.folder)
    keep_race(confirming.folder, Race(standings=(other, fastest), ranking=ranking), len(trials) - 1)
    assert f"not confirmed: {fastest.trial.description}." in explain_interruption(confirming.folder)
