import dataclasses
import math
import random

import pytest

from autorecompute.figures import Comparison, CurvePoint, Figures
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.tuning.answer.paired_comparison import LEAST_TO_GIVE_UP, PAIRS, PairedComparison, compare
from autorecompute.tuning.answer.rivals import Rival, judge_recompute
from autorecompute.verdict import LEAST_RATIO, Verdict, judge

ROUNDING = 1e-9


class Ring:
    def __init__(self, mood, ratio=1.0):
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
        comparison = PairedComparison(
            self.run_with, self.run_without, least_ratio=LEAST_RATIO, has_time=lambda: has_time
        )
        return comparison.run(first, are_neighbours=are_neighbours)


@dataclasses.dataclass
class Tally:
    decided: int = 0
    pairs: int = 0

    def add(self, found):
        self.decided += found.is_clear
        self.pairs += found.pairs


def growing(ratios):
    return [compare(ratios[:pairs], LEAST_RATIO) for pairs in range(1, len(ratios) + 1)]


@pytest.mark.parametrize("least_ratio", [LEAST_RATIO, 1.02])
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("seed", range(25))
def test_no_verdict_disagrees_with_its_interval(least_ratio, noise, seed):
    chance = random.Random(seed)
    centre = chance.gauss(0, 0.2)
    ratios = [math.exp(chance.gauss(centre, noise)) for _ in range(chance.randint(1, PAIRS))]
    found = compare(ratios, least_ratio)
    verdict = judge(found, least_ratio)
    assert found.is_clear == (verdict is not Verdict.UNDECIDED)
    if len(ratios) == 1:
        assert verdict is Verdict.UNDECIDED
        return
    assert found.low <= found.ratio * (1 + ROUNDING)
    assert found.ratio <= found.high * (1 + ROUNDING)
    assert (verdict is Verdict.RECOMPUTE_PAYS) == (found.low >= least_ratio)
    assert (verdict is Verdict.DOES_NOT_PAY) == (found.high < least_ratio)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.99, 1.2, Verdict.RECOMPUTE_PAYS),
        (0.9, 0.97, Verdict.DOES_NOT_PAY),
        (0.11, 7.98, Verdict.UNDECIDED),
        (0.97, 1.2, Verdict.UNDECIDED),
        (None, None, Verdict.UNDECIDED),
    ],
)
def test_recompute_pays_where_the_rival_batch_is_no_faster_than_the_margin(make_result, low, high, verdict):
    comparison = Comparison(ratio=1.0, low=low, high=high, pairs=2, is_clear=low is not None)
    assert judge_recompute(make_result().best, Rival(comparison=comparison)) is verdict


def test_recompute_pays_beside_what_was_measured(make_result):
    close = Comparison(ratio=1.01, low=1.0, high=1.02, pairs=2, is_clear=True)
    result = make_result(verdict=Verdict.RECOMPUTE_PAYS, comparison=close)
    assert result.verdict_sentence.endswith(
        "and the largest batch that fits without recompute is not more than 2 % faster"
    )
    curve = (CurvePoint(batch=8, without=Figures(outcome=Outcome.OK, batch=8, samples_per_second=40.0)),)
    of_several = dataclasses.replace(result, curve=curve).verdict_sentence
    assert of_several.endswith("none of the batches that were measured without recompute is more than 2 % faster")


def test_without_a_winner_nothing_fits_and_without_recompute_none_is_needed(make_result):
    leads = Rival(comparison=Comparison(ratio=0.5, low=0.4, high=0.6, pairs=2, is_clear=True))
    needless = dataclasses.replace(make_result().best, config=Config())
    assert judge_recompute(None, leads) is Verdict.NO_FIT
    assert judge_recompute(needless, leads) is Verdict.NOT_NEEDED


@pytest.mark.parametrize(("none_fits", "verdict"), [(True, Verdict.RECOMPUTE_PAYS), (False, Verdict.UNDECIDED)])
def test_without_a_comparison_recompute_pays_only_where_nothing_fits_without(make_result, none_fits, verdict):
    assert judge_recompute(make_result().best, Rival(none_fits=none_fits)) is verdict


@pytest.mark.parametrize("ratio", [0.5, 0.8, 1.2, 3.0])
def test_two_pairs_that_are_far_from_the_margin_are_enough(ratio):
    ring = Ring([10.0], ratio=ratio)
    found = ring.fight(ratio * 1.02)
    assert (ring.order, found.is_clear, found.pairs) == ("BA", True, 2)


@pytest.mark.parametrize("spoilt", [0.33, 3.0])
def test_a_first_pair_that_was_disturbed_decides_nothing(spoilt):
    found = Ring([10.0], ratio=1.0).fight(spoilt)
    assert (found.pairs > LEAST_TO_GIVE_UP, found.is_clear) == (True, False)
    assert found.ratio == pytest.approx(1.0)
    assert found.low < found.ratio < found.high
    assert judge(found) is Verdict.UNDECIDED


def test_one_pair_is_not_sure():
    found = Ring([10.0]).fight(0.5, has_time=False)
    assert (found.pairs, found.is_clear) == (1, False)
    assert "1 pair of fresh processes: not sure" in found.sentence


def test_a_near_comparison_is_repeated_in_turns_until_it_is_clear():
    ring = Ring([10.0], ratio=1.05)
    found = ring.fight(1.05)
    assert (ring.order, found.pairs, found.is_clear) == ("BA", 2, True)
    assert found.ratio == pytest.approx(1.05)


def test_a_mood_that_both_neighbours_share_does_not_decide():
    ring = Ring([10.0, 10.0, 5.0, 5.0, 20.0, 20.0], ratio=0.95)
    found = ring.fight(1.0, are_neighbours=False)
    assert ring.order == "ABBA"
    assert (found.ratio, found.is_clear) == (pytest.approx(0.95), True)


def test_what_stays_unclear_is_said_to_be_after_a_few_pairs():
    ring = Ring([10.0, 11.0, 10.0, 11.0, 10.0, 10.0])
    found = ring.fight(1.0, are_neighbours=False)
    assert (ring.order, found.pairs, found.is_clear) == ("ABBAAB", LEAST_TO_GIVE_UP, False)
    assert found.low < LEAST_RATIO < found.high
    assert "too close to be sure" in found.sentence


def test_giving_up_early_takes_fewer_pairs_and_decides_as_often():
    patient, sparing = Tally(), Tally()
    for seed in range(2000):
        chance = random.Random(seed)
        ratios = [LEAST_RATIO * math.exp(chance.gauss(chance.choice([0.0, 0.1]), 0.1)) for _ in range(PAIRS)]
        patient.add(next((found for found in growing(ratios) if found.is_clear), compare(ratios, LEAST_RATIO)))
        rest = iter(ratios[1:])
        sparing.add(
            PairedComparison(lambda rest=rest: next(rest), lambda: 1.0, least_ratio=LEAST_RATIO).run(
                ratios[0], are_neighbours=True
            )
        )
    assert sparing.decided >= 0.97 * patient.decided
    assert sparing.pairs <= 0.87 * patient.pairs


def test_at_the_margin_itself_chance_decides_in_less_than_three_of_ten_cases():
    chance, decided = random.Random(0), 0
    for _ in range(2000):
        ratios = iter([LEAST_RATIO * math.exp(chance.gauss(0, 0.1)) for _ in range(PAIRS)])
        comparison = PairedComparison(lambda ratios=ratios: next(ratios), lambda: 1.0, least_ratio=LEAST_RATIO)
        decided += comparison.run(next(ratios), are_neighbours=True).is_clear
    assert 200 < decided < 600


def test_the_time_ends_a_comparison():
    ring = Ring([10.0])
    assert not ring.fight(1.0, has_time=False).is_clear
    assert ring.order == ""


def test_processes_that_ran_minutes_apart_say_nothing_for_sure():
    ring = Ring([10.0], ratio=1.3)
    found = ring.fight(0.5, are_neighbours=False)
    assert (ring.order, found.pairs, found.is_clear) == ("ABBA", 2, True)
    assert found.ratio == pytest.approx(1.3)
    untried = ring.fight(0.5, are_neighbours=False, has_time=False)
    assert (untried.pairs, untried.is_clear) == (0, False)
    assert "not sure" in untried.sentence


def test_a_run_that_fails_ends_a_comparison(monkeypatch):
    ring = Ring([10.0])
    monkeypatch.setattr(ring, "run_without", lambda: None)
    found = ring.fight(1.01)
    assert (found.pairs, found.ratio, found.is_clear) == (1, 1.01, False)


def test_the_interval_holds_the_ratio_it_is_told_with():
    found = compare([1.1, 1.0, 1.2], LEAST_RATIO)
    assert found.low < found.ratio < found.high
    assert found.is_clear == (found.low > LEAST_RATIO)


def test_a_rival_that_cannot_be_measured_is_not_said_to_be_slower(make_tuning, make_measurement, monkeypatch):
    tuning = make_tuning(max_trials=12)
    watch = tuning.bench.watch

    def fail_below(environment, effort, batch):
        return make_measurement(Outcome.CRASH) if batch < 32 else watch(environment, effort, batch)

    monkeypatch.setattr(tuning.bench, "watch", fail_below)
    result = tuning.run()
    assert (result.compared, result.rival, result.verdict) == (True, None, Verdict.UNDECIDED)
    assert "no smaller one was seen to fit without it" in result.verdict_sentence
    assert any("no smaller batch without recompute could be measured" in note for note in tuning.watcher.notes)
