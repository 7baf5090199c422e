"""What is written as JSON comes back as it was."""

from __future__ import annotations

import json
import math

import pytest

from autorecompute import codec
from autorecompute.backends.ortmodule.grammar import Level, config_of_level
from autorecompute.figures import Figures
from autorecompute.measurement import Detection, Measurement, Outcome, Trial
from autorecompute.plans import Config
from autorecompute.result import Result, Verdict
from autorecompute.studies import Problem

CONFIGS = [
    Config(),
    config_of_level(Level.LAYERWISE_WITH_COMPROMISE),
    Config.parse(["Gelu+:1:-1", "Cast+:2:-1"]),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_comes_back(config):
    """Rows, options and levels survive, and with them the hash."""
    again = codec.decode(codec.encode(config), Config)
    assert (again, again.hash) == (config, config.hash)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("outcome", Outcome)
def test_a_trial_comes_back(make_trial, config, outcome):
    """Every outcome survives, with figures or without."""
    trial = make_trial(config, number=7, outcome=outcome, message="why", reference_seconds=0.5)
    assert codec.decode(codec.encode(trial), Trial) == trial


def test_a_diverged_loss_comes_back(make_measurement):
    """A loss that is no number is still none after the way through JSON."""
    again = codec.decode(codec.encode(make_measurement(losses=(math.nan, math.inf))), Measurement)
    assert math.isnan(again.losses[0])
    assert math.isinf(again.losses[1])


def test_a_detection_and_its_problem_come_back(make_detection, make_space):
    """What identifies a problem survives, and the same plans make the same digest."""
    detection = make_detection(make_space(has_levels=True))
    problem = Problem.of(detection, 2**30)
    assert codec.decode(codec.encode(detection), Detection) == detection
    assert codec.decode(codec.encode(problem), Problem) == problem


@pytest.mark.parametrize(
    "changes", [{}, {"best": None, "verdict": Verdict.NO_FIT}, {"rival": Figures(outcome=Outcome.OK, batch=8)}]
)
def test_an_answer_comes_back(make_result, changes):
    """An answer survives with a winner, without one, and with a rival."""
    import dataclasses

    result = dataclasses.replace(make_result(), **changes)
    assert codec.decode(codec.encode(result), Result) == result


def test_what_is_unknown_is_null_and_never_0(make_trial):
    """A number that was not measured is ``null`` in the JSON."""
    plain = json.loads(codec.encode(make_trial(outcome=Outcome.OOM)))
    assert {plain["measurement"][name] for name in ("peak_bytes", "samples", "batch", "device_bytes")} == {None}
    assert plain["reference_seconds"] is None


@pytest.mark.parametrize(
    "change", [{"outcome": "splendid"}, {"step_seconds": ["soon"]}, {"peak_bytes": "much"}, {"step_seconds": 3}]
)
def test_what_describes_no_measurement_is_refused(make_measurement, change):
    """An unknown outcome and words for numbers are errors that name the class."""
    plain = {**codec.to_plain(make_measurement()), **change}
    with pytest.raises(codec.UnreadableError, match="Measurement"):
        codec.from_plain(plain, Measurement)


def test_a_missing_field_is_refused(make_trial):
    """A trial without its config is no trial."""
    plain = codec.to_plain(make_trial())
    del plain["config"]
    with pytest.raises(codec.UnreadableError):
        codec.from_plain(plain, Trial)
