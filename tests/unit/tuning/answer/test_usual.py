"""The answer beside gradient checkpointing of all blocks; the fake's preset ``light`` stands for it."""

import dataclasses

import pytest

from autorecompute.measurement import Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.units import MIB
from fake_backend import controller


@pytest.fixture(autouse=True)
def _usual(monkeypatch):
    monkeypatch.setattr(controller, "USUAL_PRESET", "light")


def usual_of(tuning):
    return tuning.bench.detection.space.presets["light"]


def test_the_answer_is_timed_beside_it_once(make_tuning):
    tuning = make_tuning()
    result = tuning.run()
    best, bench = result.best.config, tuning.bench
    assert best != usual_of(tuning)
    expected = bench.seconds(usual_of(tuning), 32) / bench.seconds(best, 32)
    assert result.beside_checkpointing.ratio == pytest.approx(expected)
    assert result.beside_checkpointing.is_clear
    assert result.checkpointing.batch == 32
    assert result.presets["light"].outcome is Outcome.OK
    usual, rival = result.headline.split(", ")
    assert usual == f"{expected:.2f}x gradient checkpointing"
    assert rival == f"{result.comparison.ratio:.2f}x batch {result.rival.batch} without recompute"
    again = make_tuning(max_trials=60)
    assert again.run().beside_checkpointing == result.beside_checkpointing
    assert usual_of(again) not in [config for config, _ in again.bench.measured]


def test_it_may_need_too_much(make_tuning):
    tuning = make_tuning()
    too_much = Measurement(outcome=Outcome.OK, peak_bytes=601 * MIB, step_seconds=(1.0,), samples=32, batch=32)
    tuning.bench.broken[usual_of(tuning)] = too_much
    result = tuning.run()
    assert result.checkpointing.outcome is Outcome.OVER_LIMIT
    assert result.beside_checkpointing is None
    assert result.headline.startswith("fits where gradient checkpointing does not")


def test_a_batch_that_fits_as_it_is_has_it_beside_it_too(make_tuning):
    tuning = make_tuning(limit_bytes=2000 * MIB)
    result = tuning.run()
    assert result.best.config == Config()
    assert result.headline == f"{result.beside_checkpointing.ratio:.2f}x gradient checkpointing"


def test_a_model_without_blocks_has_none(make_tuning, make_detection):
    detection = make_detection()
    result = make_tuning(detection=dataclasses.replace(detection, own_presets={})).run()
    assert result.checkpointing is None
    assert "gradient checkpointing" not in result.headline
