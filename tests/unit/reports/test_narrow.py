"""The tables of the last screen and of ``show`` on terminals of any width: names and figures stay whole."""

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from autorecompute.figures import CurvePoint, Figures, KnobFigures, Recomputed
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.prediction import Prediction
from autorecompute.reports.screen import print_result, print_trials
from autorecompute.units import MIB
from stand_ins.emitted import rendered

WIDTHS = pytest.mark.parametrize("width", [40, 60, 70, 80, 84, 100, 104, 120])
NAME = "blocks.*.attention/linear and blocks.*.mlp/layer_norm"
EXPECTED = Prediction(
    peak_bytes=512 * MIB, peak_low=500 * MIB, peak_high=520 * MIB, step=1.25, step_low=1.2, step_high=1.3, fits=0.9
)


@pytest.fixture
def result(make_result):
    """An answer with all that makes a table wide: an interval, many samples/s, and a preset that was not measured."""
    best = dataclasses.replace(
        make_result().best,
        description=NAME,
        samples_per_second=15924.4,
        relative_throughput=0.69,
        relative_low=0.46,
        relative_high=1.07,
    )
    presets = {"every_second_block": Figures(), "all_on": Figures()}
    return dataclasses.replace(make_result(), best=best, presets=presets, expected={"every_second_block": EXPECTED})


def shown(result, width):
    """The last screen's lines at this width."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_result(result, [], Path("/studies/bert"), rendered(result), console)
    return console.file.getvalue().splitlines()


def lines_before(lines, end):
    """The lines before the first one that begins so."""
    return lines[: next(place for place, line in enumerate(lines) if line.startswith(end))]


def assert_whole(lines, width, words):
    """Every word is in one piece, and no line is wider than the terminal."""
    found = {word.strip(",:") for line in lines for word in line.split()}
    assert [word for text in words for word in text.split() if word not in found] == []
    assert max(map(len, lines)) <= width


@WIDTHS
def test_the_answer_is_whole_at_any_width(result, width):
    """The names of all configs can be read, and every figure stands on one line with its unit and interval."""
    lines = lines_before(shown(result, width), "verdict")
    assert_whole(lines, width, [NAME, "every second block", "all on", "baseline none", "confirmed"])
    for figure in ("700 MiB", "15924.4 samples/s", "0.69x (0.46-1.07)", "~512 MiB", "~0.80x", "expected, not measured"):
        assert any(figure in line for line in lines)


@WIDTHS
def test_trials_are_whole_at_any_width(make_trial, width):
    """Each trial has its number, its name, and what was measured and what came of it."""
    trials = [
        make_trial(Config.parse(["blocks.*/gelu:drop"]), number=7, description=NAME, reason="the best at 12 % to fit"),
        make_trial(number=8, outcome=Outcome.WRONG_GRADIENT),
    ]
    trials = [dataclasses.replace(trial, prediction=EXPECTED) for trial in trials]
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_trials(trials, console)
    lines = console.file.getvalue().splitlines()
    assert_whole(lines, width, ["7 8", NAME, "none", "ok", "wrong_gradient"])
    peak = f"{trials[0].measurement.peak_bytes // MIB} MiB"
    assert any(peak in line for line in lines)


def test_a_narrow_terminal_does_without_what_matters_least(make_trial):
    """Before a table becomes a list, the reasons and what was expected are left out of it."""
    trials = [dataclasses.replace(make_trial(description=NAME, reason="presets"), prediction=EXPECTED)]
    texts = []
    for width in (200, 80, 60):
        console = Console(file=io.StringIO(), width=width, highlight=False)
        print_trials(trials, console)
        texts.append(console.file.getvalue())
    assert ["presets" in text for text in texts] == [True, False, True]
    assert ["config" in text for text in texts] == [True, True, False]


@WIDTHS
def test_a_curve_and_knobs_are_whole_at_any_width(result, width):
    """So are the batches with their configs, and the other settings with what became of them."""
    figures = Figures(outcome=Outcome.OK, batch=32, samples_per_second=15095.1, peak_bytes=600 * MIB)
    recomputed = Recomputed(study="bert-b32", description="blocks.*/layer_norm", figures=figures, config=Config())
    curve = (CurvePoint(batch=32, without=figures, recomputed=recomputed),)
    knob = KnobFigures(
        name="expandable_segments", outcome=Outcome.OK, kept=True, throughput_ratio=1.08, low=1.05, high=1.11,
        peak_bytes=610 * MIB, base_peak_bytes=600 * MIB,
    )  # fmt: skip
    lines = shown(dataclasses.replace(result, curve=curve, knobs=(knob,)), width)
    assert_whole(lines_before(lines, "verdict"), width, ["32", "15095.1", "600 MiB", "blocks.*/layer_norm"])
    assert_whole(
        lines_before(lines, "train with"), width, ["expandable_segments", "1.08x", "1.05-1.11", "610 +10", "kept"]
    )
