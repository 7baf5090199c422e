"""What the winner and its rival say about recompute, and how often they are asked."""

import dataclasses
import math
import random

import pytest

from autorecompute.figures import LEAST_RATIO, Comparison, CurvePoint, Figures, Verdict, judge
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.tuning.intervals import centre, interval, signed_rank_quantile, student_quantile
from autorecompute.tuning.rivals import LEAST_TO_GIVE_UP, PAIRS, Rival, compare, compare_in_pairs, judge_recompute
from stand_ins.formula import instead

ROUNDING = 1e-9


class Ring:
    """Two sides whose throughput follows the machine's mood at the nth process; that with recompute by a ratio more."""

    def __init__(self, mood=(10.0,), ratio=1.0):
        self.order, self._mood, self._ratio = "", mood, ratio

    def run_with(self):
        self.order += "A"
        return self._speed() * self._ratio

    def run_without(self):
        self.order += "B"
        return self._speed()

    def _speed(self):
        return self._mood[(len(self.order) - 1) % len(self._mood)]

    def fight(self, first, *, are_neighbours=True, has_time=True):
        return compare_in_pairs(
            self.run_with,
            self.run_without,
            first,
            least_ratio=LEAST_RATIO,
            are_neighbours=are_neighbours,
            has_time=lambda: has_time,
        )


@pytest.mark.parametrize("least_ratio", [LEAST_RATIO, 1.02])
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1, 1.0])
def test_no_verdict_disagrees_with_its_interval(least_ratio, noise):
    for seed in range(25):
        chance = random.Random(seed)
        centre = chance.gauss(0, 0.2)
        ratios = [math.exp(chance.gauss(centre, noise)) for _ in range(chance.randint(1, PAIRS))]
        found = compare(ratios, least_ratio)
        verdict = judge(found, least_ratio)
        assert found.is_clear == (verdict is not Verdict.UNDECIDED)
        if len(ratios) == 1:
            assert verdict is Verdict.UNDECIDED
            continue
        assert found.low <= found.ratio * (1 + ROUNDING)
        assert found.ratio <= found.high * (1 + ROUNDING)
        assert (verdict is Verdict.RECOMPUTE_PAYS) == (found.low >= least_ratio)
        assert (verdict is Verdict.DOES_NOT_PAY) == (found.high < least_ratio)


def led(low, high):
    return Rival(comparison=Comparison(ratio=1.0, low=low, high=high, pairs=2, is_clear=low is not None))


@pytest.mark.parametrize(
    ("rival", "verdict"),
    [
        (led(0.99, 1.2), Verdict.RECOMPUTE_PAYS),
        (led(0.9, 0.97), Verdict.DOES_NOT_PAY),
        (led(0.11, 7.98), Verdict.UNDECIDED),
        (led(0.97, 1.2), Verdict.UNDECIDED),
        (led(None, None), Verdict.UNDECIDED),
        (Rival(none_fits=True), Verdict.RECOMPUTE_PAYS),
        (Rival(none_fits=False), Verdict.UNDECIDED),
    ],
)
def test_the_ends_of_the_interval_or_that_nothing_fits_without_decide_whether_recompute_pays(
    make_result, rival, verdict
):
    """A rival has no say where nothing fits or no recompute is needed."""
    best = make_result().best
    assert judge_recompute(best, rival) is verdict
    assert judge_recompute(None, rival) is Verdict.NO_FIT
    assert judge_recompute(dataclasses.replace(best, config=Config()), rival) is Verdict.NOT_NEEDED


def test_recompute_pays_beside_what_was_measured(make_result):
    close = Comparison(ratio=1.01, low=1.0, high=1.02, pairs=2, is_clear=True)
    result = make_result(verdict=Verdict.RECOMPUTE_PAYS, comparison=close)
    assert result.verdict_sentence.endswith(
        "and the largest batch that fits without recompute is not more than 2 % faster"
    )
    curve = (CurvePoint(batch=8, without=Figures(outcome=Outcome.OK, batch=8, samples_per_second=40.0)),)
    of_several = dataclasses.replace(result, curve=curve).verdict_sentence
    assert of_several.endswith("none of the batches that were measured without recompute is more than 2 % faster")


@pytest.mark.parametrize("ratio", [0.5, 1.05, 1.2, 3.0])
def test_two_pairs_that_agree_are_enough_and_the_second_runs_in_the_opposite_order(ratio):
    ring = Ring(ratio=ratio)
    found = ring.fight(ratio)
    assert (ring.order, found.is_clear, found.pairs) == ("BA", True, 2)
    assert found.ratio == pytest.approx(ratio)


@pytest.mark.parametrize("spoilt", [0.33, 3.0])
def test_a_first_pair_that_was_disturbed_decides_nothing(spoilt):
    """The others are believed, and that they disagree is told."""
    found = Ring().fight(spoilt)
    assert (found.pairs > LEAST_TO_GIVE_UP, found.is_clear) == (True, False)
    assert found.ratio == pytest.approx(1.0)
    assert found.low < found.ratio < found.high
    assert judge(found) is Verdict.UNDECIDED


def test_where_there_is_no_time_for_a_second_pair_one_is_not_sure():
    ring = Ring()
    found = ring.fight(0.5, has_time=False)
    assert (ring.order, found.pairs, found.is_clear) == ("", 1, False)
    assert "1 pair: not sure" in found.sentence


def test_a_mood_that_neighbours_share_does_not_decide_and_what_stays_unclear_is_said_to_be():
    ring = Ring([10.0, 10.0, 5.0, 5.0, 20.0, 20.0], ratio=0.95)
    found = ring.fight(1.0, are_neighbours=False)
    assert ring.order == "ABBA"
    assert (found.ratio, found.is_clear) == (pytest.approx(0.95), True)
    ring = Ring([10.0, 11.0, 10.0, 11.0, 10.0, 10.0])
    found = ring.fight(1.0, are_neighbours=False)
    assert (ring.order, found.pairs, found.is_clear) == ("ABBAAB", LEAST_TO_GIVE_UP, False)
    assert found.low < LEAST_RATIO < found.high
    assert "too close to be sure" in found.sentence


def test_processes_that_ran_minutes_apart_are_no_pair():
    ring = Ring(ratio=1.3)
    found = ring.fight(0.5, are_neighbours=False)
    assert (ring.order, found.pairs, found.is_clear) == ("ABBA", 2, True)
    assert found.ratio == pytest.approx(1.3)
    untried = ring.fight(0.5, are_neighbours=False, has_time=False)
    assert (untried.pairs, untried.is_clear) == (0, False)
    assert "not sure" in untried.sentence


def test_a_run_that_fails_leaves_what_the_pairs_before_it_said(monkeypatch):
    ring = Ring()
    monkeypatch.setattr(ring, "run_without", lambda: None)
    found = ring.fight(1.01)
    assert (found.pairs, found.ratio, found.is_clear) == (1, 1.01, False)


def test_a_rival_that_cannot_be_measured_is_not_said_to_be_slower(make_tuning, make_measurement):
    tuning, crash = make_tuning(max_trials=12), make_measurement(Outcome.CRASH)
    instead(tuning.bench, "watch", lambda watch, *args: crash if args[-1] < 32 else watch(*args))
    result = tuning.run()
    assert (result.compared, result.rival, result.verdict) == (True, None, Verdict.UNDECIDED)
    assert "no smaller one was seen to fit without it" in result.verdict_sentence
    assert any("no smaller batch without recompute could be measured" in note for note in tuning.watcher.notes)


@pytest.mark.parametrize(
    ("freedom", "miss", "published"),
    [(1, 0.025, 12.706), (2, 0.005, 9.925), (4, 0.0005, 8.610), (7, 0.005, 3.499), (27, 0.005, 2.771)],
)
def test_student_is_the_published_table(freedom, miss, published):
    assert student_quantile(miss, freedom) == pytest.approx(published, abs=5e-4)


@pytest.mark.parametrize(("count", "published"), [(5, 0), (6, 1), (8, 4), (10, 9), (20, 53)])
def test_signed_rank_is_the_published_table(count, published):
    assert signed_rank_quantile(0.025, count) == published


@pytest.mark.parametrize(("count", "low", "high"), [(1, -math.inf, math.inf), (3, 0.5, 0.5)])
def test_one_value_tells_nothing_and_equal_values_leave_no_doubt(count, low, high):
    found = interval([0.5] * count, 0.01)
    assert (found.low, found.middle, found.high) == (low, 0.5, high)


def test_outliers_move_neither_the_estimate_nor_the_ends_far():
    steady = [0.01 * (index % 3 - 1) for index in range(20)]
    found = interval([*steady, *[1.1] * 3], 0.01)
    assert -0.02 <= found.low <= found.middle <= found.high <= 0.02


@pytest.mark.parametrize(
    "values", [[0.1, 0.2, 0.4], [0.3, 0.1, 0.2, 0.15, 0.05, 0.9, 0.2, 0.25, 0.3, 0.1, 0.2, 0.3, 0.2]]
)
def test_the_sign_is_all_that_a_swap_changes(values):
    found, mirrored = interval(values, 0.01), interval([-value for value in values], 0.01)
    assert (mirrored.low, mirrored.middle, mirrored.high) == pytest.approx((-found.high, -found.middle, -found.low))
    assert centre(values) == found.middle


@pytest.mark.parametrize("count", [3, 5, 12, 28])
@pytest.mark.parametrize("outliers", [0.0, 0.2])
def test_the_centre_is_missed_as_seldom_as_promised(count, outliers):
    chance = random.Random(count)

    def draw():
        swing = chance.choice((-1, 1)) * math.log(3) if chance.random() < outliers else 0.0
        return chance.gauss(0, 0.05) + swing

    found = [interval([draw() for _ in range(count)], 0.025) for _ in range(400)]
    assert sum(not one.low <= 0 <= one.high for one in found) <= 0.05 * 400 + 13
