import math
import random

import pytest

from autorecompute.tuning.intervals import centre, interval, signed_rank_quantile, student_quantile


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
