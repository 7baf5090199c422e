import math

import pytest

from autorecompute.measurement import Outcome
from autorecompute.tuning.answer.finalists import Finalist, Round, fitting_finalists, gap, rank


def numbers_of(standings):
    return [finalist.trial.number for finalist in standings]


@pytest.fixture
def make_entry(make_trial):
    def make(*seconds, number=0, peak=1, reference=1.0):
        rounds = tuple(Round(step_seconds=(step,), reference_seconds=(reference,)) for step in seconds)
        return Finalist(trial=make_trial(number=number, peak_bytes=peak), rounds=rounds)

    return make


def test_only_what_fits_is_a_finalist_and_the_fastest_comes_first(make_trial):
    trials = [
        make_trial(number=0, reference_seconds=1.0, step_seconds=(1.25,)),
        make_trial(number=1, reference_seconds=2.0, step_seconds=(2.1,)),
        make_trial(number=2, outcome=Outcome.OVER_LIMIT, reference_seconds=1.0, step_seconds=(1.0,)),
        make_trial(number=3, outcome=Outcome.OOM),
    ]
    assert numbers_of(fitting_finalists(trials)) == [1, 0]


def test_without_a_reference_the_step_time_decides(make_trial):
    trials = [make_trial(number=0, step_seconds=(0.5,)), make_trial(number=1, step_seconds=(0.25,))]
    assert numbers_of(fitting_finalists(trials)) == [1, 0]


def test_a_trial_without_a_reference_has_no_advantage(make_trial):
    trials = [
        make_trial(number=0, reference_seconds=0.09, step_seconds=(0.1,)),
        make_trial(number=1, reference_seconds=None, step_seconds=(0.2,)),
    ]
    assert numbers_of(fitting_finalists(trials)) == [0, 1]


@pytest.mark.parametrize(
    ("speeds_and_peaks", "order"),
    [
        ([(1.0, 10), (0.99, 5)], [0, 1]),
        ([(0.9, 10), (0.9, 11), (0.9, 9)], [2, 0, 1]),
        ([(0.5, 1), (0.9, 10), (0.7, 1)], [1, 2, 0]),
        ([], []),
    ],
)
def test_the_estimate_ranks_and_the_peak_only_where_it_is_equal(make_entry, speeds_and_peaks, order):
    entries = [make_entry(1 / speed, number=number, peak=peak) for number, (speed, peak) in enumerate(speeds_and_peaks)]
    assert numbers_of(rank(entries)) == order


def test_finalists_are_compared_within_rounds(make_entry):
    early = make_entry(3.0, 3.0, 3.0, number=0)
    to_the_end = make_entry(3.3, 3.3, 3.3, 1.1, 1.1, number=1)
    assert numbers_of(rank([to_the_end, early])) == [0, 1]


def test_a_spread_holds_the_figure_and_narrows(make_entry):
    few, many = make_entry(1.1, 1.0, 1.2), make_entry(*[1.1, 1.0, 1.2] * 6)
    widths = [entry.spread[1] - entry.spread[0] for entry in (few, many)]
    assert few.spread[0] < few.relative_throughput < few.spread[1]
    assert many.relative_throughput == pytest.approx(1 / 1.1)
    assert widths[1] < widths[0] / 2


def test_one_round_has_no_spread(make_entry):
    assert make_entry(1.1).spread is None


def test_a_disturbed_round_is_no_evidence_but_an_estimate(make_trial):
    calm = Round(step_seconds=(1.25,), cpu_seconds=(2.5,), reference_seconds=(1.0,), reference_cpu_seconds=(2.0,))
    busy = Round(
        step_seconds=(1.1,),
        cpu_seconds=(2.0,),
        reference_seconds=(4.4,),
        reference_cpu_seconds=(1.0,),
        is_disturbed=True,
    )
    trial = make_trial()
    mixed, disturbed = (Finalist(trial=trial, rounds=rounds) for rounds in ((busy, calm, busy, calm), (busy, busy)))
    assert mixed.relative_throughput == 0.8
    assert mixed.spread == pytest.approx((0.8, 0.8))
    assert (disturbed.relative_throughput, disturbed.spread) == (0.5, None)


def test_nothing_is_known_of_a_difference_in_disturbed_rounds(make_trial):
    rounds = [Round(step_seconds=(1.0,), cpu_seconds=(seconds,), is_disturbed=True) for seconds in (1.0, 2.0)]
    fast, slow = (Finalist(trial=make_trial(number=number), rounds=(run,) * 9) for number, run in enumerate(rounds))
    assert gap(slow, fast, 0.01).low == -math.inf
    assert numbers_of(rank([slow, fast])) == [0, 1]
