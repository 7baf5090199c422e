import re

import pytest

from autorecompute.checking import check_speed
from autorecompute.emit import comment_lines
from autorecompute.figures import CurvePoint, Figures
from autorecompute.measurement import Outcome
from autorecompute.reports.live import AXIS, draw_plane
from autorecompute.units import MIB
from stand_ins.emitted import rendered

SAMPLES_PER_SECOND = 32 / 35_200
TOLD = "0.000909"


@pytest.fixture
def trials(make_trial, list_configs, make_space):
    return [
        make_trial(config, number=n, peak_bytes=(600 + n) * MIB, step_seconds=(35_200.0 + 4_000 * n,))
        for n, config in enumerate(list_configs(make_space())[:2])
    ]


@pytest.fixture
def result(make_result, trials):
    figures = Figures(outcome=Outcome.OK, batch=32, samples_per_second=SAMPLES_PER_SECOND, peak_bytes=600 * MIB)
    curve = (CurvePoint(batch=32, without=figures),)
    of_best = {"samples_per_second": SAMPLES_PER_SECOND}
    return make_result(trials[0].config, of_best=of_best, baseline=figures, curve=curve)


def test_a_slow_throughput_is_told_everywhere(show, table, result, trials, keep, read):  # noqa: PLR0917
    printed = (show(result, trials, width=200), table(trials), comment_lines(result, rendered(result)))
    line = check_speed([SAMPLES_PER_SECOND, 2 * SAMPLES_PER_SECOND], result.best, is_same_device=True)
    assert (line.stored, line.here) == (f"{TOLD} samples/s", "0.00136 samples/s (0.000909-0.00182)")
    for text in (*map("\n".join, printed), read(keep(trials, result)).text):
        assert TOLD in text
        assert not re.search(r"(?<![\d.])0\.0(?![\d])", text)


def test_the_axis_of_the_drawing_is_straight_beside_long_labels(trials):
    *lines, _ = draw_plane(trials, 650 * MIB, width=60, height=5)
    assert lines[0].startswith(f"{TOLD}/s")
    assert len({line.index(AXIS) for line in lines}) == 1
