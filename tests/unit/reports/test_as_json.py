"""The object that ``tune --json`` prints, and the trials of ``show --json``."""

import dataclasses
import json

import pytest

from autorecompute import codec
from autorecompute.figures import Figures, KnobFigures
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.reports.answer_json import Answer, MeasuredTrial
from autorecompute.verdict import Verdict
from stand_ins.emitted import rendered


def strictly(text):
    """The JSON as a parser reads it that knows no NaN."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_the_contract_is_kept(make_result):
    """Scripts find every name that the contract promises, with the winner's own values behind it."""
    result = make_result()
    plain = strictly(codec.dumps(Answer.of(result, [], rendered(result))))
    promised = {"study", "problem", "best", "baseline", "presets", "trials", "wall_seconds", "verdict"}
    assert promised <= set(plain)
    assert {"outcome", "samples_per_second", "peak_bytes"} <= set(plain["baseline"])
    best = plain["best"]
    assert best["config"] == result.best.config.texts
    assert best["env"] == rendered(result).variables
    assert (best["batch"], best["peak_bytes"], best["limit_bytes"]) == (
        32,
        result.best.peak_bytes,
        result.best.limit_bytes,
    )
    assert (best["confirmed"], best["samples_per_second"]) == (True, result.best.samples_per_second)
    assert plain["verdict"] == Verdict.RECOMPUTE_PAYS


def test_what_was_not_measured_is_null(make_result):
    """An unmeasured number is ``null`` and never 0."""
    result = dataclasses.replace(make_result(), presets={"light": Figures()})
    plain = strictly(codec.dumps(Answer.of(result, [], rendered(result))))
    assert plain["baseline"]["outcome"] == "oom"
    assert (plain["baseline"]["samples_per_second"], plain["baseline"]["peak_bytes"]) == (None, None)
    assert set(plain["presets"]["light"].values()) == {None}
    assert plain["rival"] is None


def test_without_a_winner_best_is_null(make_result):
    """Where nothing fits there is no best."""
    assert Answer.of(dataclasses.replace(make_result(), best=None), [], None).best is None


def test_an_opaque_preset_is_told_as_such(make_result):
    """A preset that is no mix of plans is not mistaken for no recompute."""
    result = make_result()
    best = dataclasses.replace(result.best, config=Config.parse(["whole model:light"]))
    plain = codec.to_plain(Answer.of(dataclasses.replace(result, best=best), [], rendered(result)))
    assert plain["best"]["config"] == ["whole model:light"]


def test_printing_does_not_change_the_answer(make_result):
    """Making the object twice gives the same object."""
    result = make_result()
    assert Answer.of(result, [], rendered(result)) == Answer.of(result, [], rendered(result))


def test_trials_carry_all_their_samples_and_what_follows_from_them(make_trial):
    """Every timed step is there, and the figures of the tables."""
    trial = make_trial(reference_seconds=0.5, step_seconds=(1.0, 1.5, 1.0), samples=8)
    (plain,) = strictly(codec.dumps([MeasuredTrial.of(trial)]))
    assert plain["measurement"]["step_seconds"] == [1.0, 1.5, 1.0]
    assert (plain["relative_throughput"], plain["samples_per_second"]) == (0.5, 8.0)
    assert plain["hash"] == trial.config.hash


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_diverged_trial_is_json_too(make_trial, loss):
    """A loss that is no number does not break the parser that reads the study."""
    (plain,) = strictly(codec.dumps([MeasuredTrial.of(make_trial(outcome=Outcome.DIVERGED, losses=(1.0, loss)))]))
    assert plain["measurement"]["outcome"] == "diverged"


def test_a_knob_has_its_fields(make_result):
    """Scripts find what each knob is, whether it could be tried, and what came of it; ``null`` where nothing did."""
    knob = KnobFigures(name="fused_kernels", why_not="no")
    result = dataclasses.replace(make_result(), knobs=(knob,))
    (plain,) = strictly(codec.dumps(Answer.of(result, [], rendered(result))))["knobs"]
    assert {"name": "fused_kernels", "why_not": "no"}.items() <= plain.items()
    for name in ("throughput_ratio", "low", "high", "peak_bytes", "outcome"):
        assert plain[name] is None
    assert plain["kept"] is False
