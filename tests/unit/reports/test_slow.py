"""A training of which one sample takes minutes: no view has a throughput of nought for it."""

import dataclasses
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from autorecompute.checking.rules import check_speed
from autorecompute.emit.provenance import comment_lines
from autorecompute.figures import CurvePoint, Figures
from autorecompute.measurement import Outcome
from autorecompute.reports.plane import DRAWN, draw_plane
from autorecompute.reports.screen import print_result, print_trials
from autorecompute.units import MIB
from stand_ins.emitted import rendered

SAMPLES_PER_SECOND = 32 / 35_200
TOLD = "0.000909"
NOUGHT = re.compile(r"(?<![\d.])0\.0(?![\d])")


@pytest.fixture
def trials(make_trial, list_configs, make_space):
    """Two trials without a reference."""
    configs = list_configs(make_space())[:2]
    return [
        make_trial(config, number=n, peak_bytes=(600 + n) * MIB, step_seconds=(35_200.0 + 4_000 * n,))
        for n, config in enumerate(configs)
    ]


@pytest.fixture
def result(make_result, trials):
    """An answer that is one of them, with a curve."""
    answer = make_result(trials[0].config)
    figures = Figures(outcome=Outcome.OK, batch=32, samples_per_second=SAMPLES_PER_SECOND, peak_bytes=600 * MIB)
    best = dataclasses.replace(answer.best, samples_per_second=SAMPLES_PER_SECOND)
    return dataclasses.replace(answer, best=best, baseline=figures, curve=(CurvePoint(batch=32, without=figures),))


def assert_told(text):
    """The figure stands there, and none of nought."""
    assert TOLD in text
    assert NOUGHT.search(text) is None


def test_the_screen_tells_a_slow_throughput(result, trials):
    """The answer, the curve and the trials."""
    console = Console(file=io.StringIO(), width=200, highlight=False)
    print_result(result, trials, Path("/studies/bert"), rendered(result), console)
    assert_told(console.file.getvalue())
    console = Console(file=io.StringIO(), width=200, highlight=False)
    print_trials(trials, console)
    assert_told(console.file.getvalue())


def test_the_page_tells_a_slow_throughput(result, trials, keep, read):
    """Its tables and sentences."""
    assert_told(read(keep(trials, result)).text)


def test_the_drawing_tells_a_slow_throughput(trials):
    """Its two labels, which are longer than most, leave the axis straight."""
    *lines, _ = draw_plane(trials, 650 * MIB, width=60, height=5, marks=DRAWN)
    assert lines[0].startswith(f"{TOLD}/s")
    assert len({line.index(DRAWN.axis) for line in lines}) == 1


def test_emitted_and_checked_files_tell_a_slow_throughput(result):
    """The comments of a file to source, and what a check compares."""
    assert_told("\n".join(comment_lines(result, rendered(result))))
    line = check_speed([SAMPLES_PER_SECOND, 2 * SAMPLES_PER_SECOND], result.best, is_same_device=True)
    assert (line.stored, line.here) == (f"{TOLD} samples/s", "0.00136 samples/s (0.000909-0.00182)")
