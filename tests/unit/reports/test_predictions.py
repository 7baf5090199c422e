"""What was expected beside what was measured."""

import dataclasses

import pytest

from autorecompute.prediction import Prediction
from autorecompute.reports.predictions import describe_predictions, peak_error, step_error


@pytest.fixture
def predicted(make_trial):
    """A trial that was expected to reach a peak of 100 bytes and to take 1.25 times the reference's step."""

    def make(peak_bytes, seconds, spread=5):
        trial = make_trial(peak_bytes=peak_bytes, step_seconds=(seconds,), reference_seconds=1.0)
        prediction = Prediction(
            peak_bytes=100,
            peak_low=100 - spread,
            peak_high=100 + spread,
            step=1.25,
            step_low=1.2,
            step_high=1.3,
            fits=0.5,
        )
        return dataclasses.replace(trial, prediction=prediction)

    return make


def test_errors_are_of_the_expected(predicted, make_trial):
    """Above what was expected is positive, and what nobody expected has no error."""
    trial = predicted(110, 1.0)
    assert peak_error(trial) == pytest.approx(0.1)
    assert step_error(trial) == pytest.approx(-0.2)
    assert peak_error(make_trial(peak_bytes=1)) is None
    assert step_error(dataclasses.replace(trial, reference_seconds=None)) is None


def test_a_line_sums_up(predicted, make_trial):
    """Median and worst peak, the median step time, and how many intervals of each held."""
    line = describe_predictions([predicted(104, 1.25), predicted(90, 1.25), predicted(101, 1.5), make_trial()])
    assert "peaks 4.0% off in the median and 10.0% at worst, 2 of 3 within" in line
    assert line.endswith("step times 0.0% off in the median, 2 of 3 within theirs")
    assert describe_predictions([make_trial()]) == ""


def test_a_search_that_was_told_little_relied_on_its_trials(predicted):
    """Said where peaks are off by more than 5 % in the median."""
    assert "relied on its trials" in describe_predictions([predicted(106, 1.25), predicted(94, 1.25)])
    assert "relied" not in describe_predictions([predicted(104, 1.25), predicted(90, 1.25), predicted(101, 1.5)])
