import dataclasses
import json
import re

import pytest

from autorecompute import codec
from autorecompute.figures import Comparison, CurvePoint, Figures, Recomputed
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.reports.charts import draw_curve
from autorecompute.reports.documents import Answer
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.units import MIB
from stand_ins.emitted import rendered


def figures(outcome, batch, speed=None, peak=None):
    return Figures(outcome=outcome, batch=batch, samples_per_second=speed, peak_bytes=peak and peak * MIB)


@pytest.fixture
def result(make_result, make_space):
    """An answer with three batches: one fits, one needs recompute, one is too large for anything."""
    recomputed = Recomputed(
        study="bert-b32",
        description="all [red] plans",
        figures=figures(Outcome.OK, 32, 95.1, 600),
        least_peak_bytes=500 * MIB,
        config=make_space().all_on,
    )
    none = Recomputed(study="bert-b64", description="no config fits", figures=Figures(), least_peak_bytes=901 * MIB)
    curve = (
        CurvePoint(batch=8, without=figures(Outcome.OK, 8, 88.4, 400)),
        CurvePoint(batch=32, without=figures(Outcome.OVER_LIMIT, 32, 98.4, 950), recomputed=recomputed),
        CurvePoint(batch=64, without=figures(Outcome.OOM, 64), recomputed=none),
    )
    comparison = Comparison(ratio=1.04, low=1.01, high=1.08, pairs=3, is_clear=False)
    return make_result(curve=curve, comparison=comparison)


def test_every_batch_has_its_row_and_how_recompute_compares_is_told_with_its_doubt(show, result, make_result):
    """What does not fit is in brackets, and the answer's batch has a star."""
    rows = [line.split() for line in show(result)]
    assert ["8", "88.4", "400", "MiB"] in rows
    assert ["*", "32", "(98.4)", "950", "MiB", "95.1", "600", "MiB", "all", "[red]", "plans", "bert-b32"] in rows
    assert ["64", "-", "-", "-", "901", "MiB", "no", "config", "fits", "bert-b64"] in rows
    assert "by batch" in "\n".join(show(result))
    assert "by batch" not in "\n".join(show(make_result()))
    (line,) = [line for line in show(result) if " pair" in line]
    for words in ("1.04x", "(1.01-1.08)", "3 pairs", "too close"):
        assert words in line
    clear = dataclasses.replace(result.comparison, is_clear=True)
    assert "too close" not in "\n".join(show(dataclasses.replace(result, comparison=clear)))


def test_a_program_reads_the_curve(result):
    curve = json.loads(codec.dumps(Answer.of(result, [], rendered(result))))["curve"]
    assert [point["batch"] for point in curve] == [8, 32, 64]
    assert (curve[0]["without"]["samples_per_second"], curve[0]["with"]) == (88.4, None)
    recomputed = curve[1]["with"]
    assert (recomputed["samples_per_second"], recomputed["peak_bytes"]) == (95.1, 600 * MIB)
    assert (recomputed["config"], recomputed["study"]) == (result.best.config.texts, "bert-b32")
    assert (curve[2]["with"]["config"], curve[2]["with"]["least_peak_bytes"]) == (None, 901 * MIB)


MARKER_RADIUS = 2.5


@pytest.mark.parametrize(
    ("batch", "told", "star"),
    [
        (32, "This is about batch 48, the largest that was tuned. The answer is batch 32, without recompute.", False),
        (48, "The star is the config to train with", True),
    ],
)
def test_the_explanation_names_the_batch_that_it_is_about(keep, trials, answer, read, batch, told, star):  # noqa: PLR0917
    """Where nothing was tuned at the batch to train with, another one is explained, and no star is promised."""
    part = keep(trials, name="bert-b48", batch=48)
    config = answer.best.config if star else Config()
    best = dataclasses.replace(answer.best, batch=batch, config=config, description=f"config of {batch}")
    with_it = Recomputed(study=part.name, description="x", figures=Figures.of(trials[8]), config=trials[8].config)
    curve = (
        CurvePoint(batch=32, without=figures(Outcome.OK, 32, 40.0, 600)),
        CurvePoint(batch=48, without=Figures.of(trials[0]), recomputed=with_it),
    )
    result = dataclasses.replace(answer, best=best, curve=curve, trials=13)
    text = read(keep((), result, batch=SEVERAL_BATCHES)).text
    assert told in text
    assert "Each dot is a trial" in text
    assert ("The star is" in text, "This is about batch" in text) == (star, not star)


@pytest.mark.parametrize("speeds", [(32.0, 32.1, 31.9), (8.0, 64.0, 100.0), (0.001, 0.002, 0.001)])
def test_no_marker_of_the_curve_is_cut(speeds):
    curve = [
        CurvePoint(batch=8 * n, without=Figures(outcome=Outcome.OK, batch=8 * n, samples_per_second=speed))
        for n, speed in enumerate(speeds, 1)
    ]
    drawn = draw_curve(curve, None)
    ((top, height),) = re.findall(r"<clipPath[^>]*>\s*<rect x=\S+ y=\"([\d.]+)\" width=\S+ height=\"([\d.]+)\"", drawn)
    markers = [float(y) for y in re.findall(r"<use x=\"[\d.]+\" y=\"([\d.]+)\" fill", drawn)]
    inside = [y for y in markers if float(top) - MARKER_RADIUS < y <= float(top) + float(height)]
    assert len(inside) == len(speeds)
    assert min(inside) - MARKER_RADIUS > float(top)
