"""The curve of throughput against batch, for people and for programs."""

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from autorecompute import codec
from autorecompute.figures import Comparison, CurvePoint, Figures, Recomputed
from autorecompute.measurement import Outcome
from autorecompute.reports.answer_json import Answer
from autorecompute.reports.screen import print_result
from autorecompute.units import MIB
from stand_ins.emitted import rendered


def figures(outcome, batch, speed=None, peak=None):
    """The figures of a batch."""
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


def shown(result, width=120):
    """The lines of the last screen."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_result(result, [], Path("/studies/bert"), rendered(result), console)
    return console.file.getvalue().splitlines()


def test_every_batch_has_its_row(result):
    """A batch has both its figures; what does not fit is in brackets, and the answer's batch has a star."""
    rows = [line.split() for line in shown(result)]
    assert ["8", "88.4", "400", "MiB"] in rows
    assert ["*", "32", "(98.4)", "950", "MiB", "95.1", "600", "MiB", "all", "[red]", "plans", "bert-b32"] in rows
    assert ["64", "-", "-", "-", "901", "MiB", "no", "config", "fits", "bert-b64"] in rows


def test_an_answer_for_one_batch_has_no_curve(make_result):
    """Nothing is said of a curve where one batch was asked for."""
    assert not any("by batch" in line for line in shown(make_result()))


def test_how_recompute_compares_is_told_with_its_doubt(result):
    """The ratio has its spread and the pairs it comes from, and where they do not decide, that is said."""
    (line,) = [line for line in shown(result) if "fresh processes" in line]
    for words in ("1.04x", "(1.01-1.08)", "3 pairs", "too close"):
        assert words in line
    clear = dataclasses.replace(result.comparison, is_clear=True)
    assert not any("too close" in line for line in shown(dataclasses.replace(result, comparison=clear)))


def test_a_program_reads_the_curve(result):
    """Each point has its batch, its figures without, and with recompute the config, the study and the figures."""
    curve = json.loads(codec.dumps(Answer.of(result, [], rendered(result))))["curve"]
    assert [point["batch"] for point in curve] == [8, 32, 64]
    assert (curve[0]["without"]["samples_per_second"], curve[0]["with"]) == (88.4, None)
    recomputed = curve[1]["with"]
    assert (recomputed["samples_per_second"], recomputed["peak_bytes"]) == (95.1, 600 * MIB)
    assert (recomputed["config"], recomputed["study"]) == (result.best.config.texts, "bert-b32")
    assert (curve[2]["with"]["config"], curve[2]["with"]["least_peak_bytes"]) == (None, 901 * MIB)
