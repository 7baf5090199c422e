"""A study of several batches whose answer is a batch without recompute: what the page and a comparison make of it."""

import dataclasses
import json
import re

import pytest

from autorecompute.cli import main
from autorecompute.figures import CurvePoint, Figures, Recomputed
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.reports.html.charts import draw_curve
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.units import MIB

MARKER_RADIUS = 2.5


@pytest.fixture
def keep_several(keep, trials, answer):
    """Keeps a study of batch 32, which fits, and 48, which was tuned; the answer is the batch that is given."""

    def keep_several(batch):
        part = keep(trials, name="bert-b48", batch=48)
        config = Config() if batch == 32 else answer.best.config
        best = dataclasses.replace(answer.best, batch=batch, config=config, description=f"config of {batch}")
        without = Figures(outcome=Outcome.OK, batch=32, samples_per_second=40.0, peak_bytes=600 * MIB)
        with_it = Recomputed(study=part.name, description="x", figures=Figures.of(trials[8]), config=trials[8].config)
        curve = (
            CurvePoint(batch=32, without=without),
            CurvePoint(batch=48, without=Figures.of(trials[0]), recomputed=with_it),
        )
        return keep((), dataclasses.replace(answer, best=best, curve=curve, trials=13), batch=SEVERAL_BATCHES)

    return keep_several


def test_the_explanation_names_the_batch_that_it_is_about(keep_several, read):
    """Where nothing was tuned at the batch to train with, another one is explained, and no star is promised."""
    text = read(keep_several(32)).text
    assert "This is about batch 48, the largest that was tuned. The answer is batch 32, without recompute." in text
    assert "Each dot is a trial" in text
    assert "The star is" not in text


def test_the_explanation_of_the_batch_to_train_with_needs_no_name(keep_several, read):
    """Its config has its star."""
    text = read(keep_several(48)).text
    assert "This is about batch" not in text
    assert "The star is the config to train with" in text


def test_a_comparison_counts_the_trials_of_all_batches(keep_several, tmp_path, monkeypatch, capsys):
    """Its figures and its JSON are those of ``show``."""
    folder = keep_several(48)
    (tmp_path / "studies").mkdir()
    for study in (folder.path, folder.path.with_name("bert-b48")):
        study.rename(tmp_path / "studies" / study.name)
    monkeypatch.chdir(tmp_path)
    assert main(["studies", "compare", "bert", "bert"]) == 0
    assert re.search(r"^trials +13 +13$", capsys.readouterr().out, re.MULTILINE)
    assert main(["studies", "compare", "bert", "bert", "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)["studies"][0]
    assert main(["show", "bert", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert compared["trials"] == 13
    assert compared["result"] == shown["result"]
    assert compared["result"]["runners_up"]


@pytest.mark.parametrize("speeds", [(32.0, 32.1, 31.9), (8.0, 64.0, 100.0), (0.001, 0.002, 0.001)])
def test_no_marker_of_the_curve_is_cut(speeds):
    """The highest one lies whole below the upper edge, however alike the batches are."""
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
