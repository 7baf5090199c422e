import dataclasses

import pytest

from autorecompute.figures import CurvePoint, Figures, KnobFigures, Recomputed
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.units import MIB

WIDTHS = pytest.mark.parametrize("width", [40, 60, 70, 80, 84, 100, 104, 120])
NAME = "blocks.*.attention/linear and blocks.*.mlp/layer_norm"


@pytest.fixture
def result(make_result, expected):
    """An answer with all that makes a table wide: an interval, many samples/s, and a preset that was not measured."""
    relative = {"relative_throughput": 0.69, "relative_low": 0.46, "relative_high": 1.07}
    return make_result(
        of_best={"description": NAME, "samples_per_second": 15924.4, **relative},
        presets={"every_second_block": Figures(), "all_on": Figures()},
        expected={"every_second_block": expected},
    )


def lines_before(lines, end):
    return lines[: next(place for place, line in enumerate(lines) if line.startswith(end))]


def assert_whole(lines, width, words):
    """Every word is in one piece, and no line is wider than the terminal."""
    found = {word.strip(",:") for line in lines for word in line.split()}
    assert [word for text in words for word in text.split() if word not in found] == []
    assert max(map(len, lines)) <= width


@WIDTHS
def test_the_answer_is_whole_at_any_width(show, result, width):
    lines = lines_before(show(result, width=width), "verdict")
    assert_whole(lines, width, [NAME, "every second block", "all on", "baseline none", "confirmed"])
    for figure in ("700 MiB", "15924.4 samples/s", "0.69x (0.46-1.07)", "~512 MiB", "~0.80x", "expected, not measured"):
        assert any(figure in line for line in lines)


@WIDTHS
def test_trials_are_whole_at_any_width(table, make_trial, expected, width):
    trials = [
        make_trial(Config.parse(["blocks.*/gelu:drop"]), number=7, description=NAME, reason="the best at 12 % to fit"),
        make_trial(number=8, outcome=Outcome.WRONG_GRADIENT),
    ]
    lines = table([dataclasses.replace(trial, prediction=expected) for trial in trials], width)
    assert_whole(lines, width, ["7 8", NAME, "none", "ok", "wrong_gradient"])
    assert any("700 MiB" in line for line in lines)


def test_a_narrow_terminal_does_without_what_matters_least(table, make_trial, expected):
    """Before a table becomes a list, the reasons and what was expected are left out of it."""
    trial = dataclasses.replace(make_trial(description=NAME, reason="presets"), prediction=expected)
    texts = ["\n".join(table([trial], width)) for width in (200, 80, 60)]
    assert ["presets" in text for text in texts] == [True, False, True]
    assert ["config" in text for text in texts] == [True, True, False]


@WIDTHS
def test_a_curve_and_knobs_are_whole_at_any_width(show, result, width):
    figures = Figures(outcome=Outcome.OK, batch=32, samples_per_second=15095.1, peak_bytes=600 * MIB)
    recomputed = Recomputed(study="bert-b32", description="blocks.*/layer_norm", figures=figures, config=Config())
    curve = (CurvePoint(batch=32, without=figures, recomputed=recomputed),)
    knob = KnobFigures(
        name="expandable_segments", outcome=Outcome.OK, kept=True, throughput_ratio=1.08, low=1.05, high=1.11,
        peak_bytes=610 * MIB, base_peak_bytes=600 * MIB,
    )  # fmt: skip
    lines = show(dataclasses.replace(result, curve=curve, knobs=(knob,)), width=width)
    assert_whole(lines_before(lines, "verdict"), width, ["32", "15095.1", "600 MiB", "blocks.*/layer_norm"])
    assert_whole(
        lines_before(lines, "train with"), width, ["expandable_segments", "1.08x", "1.05-1.11", "610 +10", "kept"]
    )
