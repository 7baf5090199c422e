"""From trials to an answer, in words."""

from __future__ import annotations

import dataclasses
import re

import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config, Plan
from autorecompute.result import Verdict
from autorecompute.tuning.judgement import explain_no_fit, judge_recompute
from autorecompute.tuning.tuner import judge
from autorecompute.units import GIB, MIB, parse_bytes

LIMIT = 600 * MIB


@pytest.mark.parametrize(
    ("rival_samples", "verdict"),
    [
        (None, Verdict.RECOMPUTE_PAYS),
        (90, Verdict.RECOMPUTE_PAYS),
        (101, Verdict.RECOMPUTE_PAYS),
        (103, Verdict.DOES_NOT_PAY),
    ],
)
def test_recompute_pays_unless_its_rival_is_clearly_faster(make_result, make_measurement, rival_samples, verdict):
    """A smaller batch must be faster by more than the noise before recompute is said not to pay."""
    best = dataclasses.replace(make_result().best, samples_per_second=100.0)
    rival = rival_samples and make_measurement(samples=rival_samples, step_seconds=(1.0,))
    assert judge_recompute(best, rival) is verdict


def test_without_a_winner_nothing_fits_and_without_recompute_none_is_needed(make_result, make_measurement):
    """The rival has no say where no config fits, or where the batch fits without recompute."""
    rival = make_measurement(samples=10**6)
    needless = dataclasses.replace(make_result().best, config=Config())
    assert judge_recompute(None, rival) is Verdict.NO_FIT
    assert judge_recompute(needless, rival) is Verdict.NOT_NEEDED


@pytest.mark.parametrize(
    ("peak_bytes", "outcome"),
    [(LIMIT - 1, Outcome.OK), (LIMIT, Outcome.OK), (LIMIT + 1, Outcome.OVER_LIMIT), (2 * LIMIT, Outcome.OVER_LIMIT)],
)
def test_a_peak_may_reach_the_limit_and_not_exceed_it(make_measurement, peak_bytes, outcome):
    """The limit itself fits, a byte more does not, and the figures stay."""
    measured = make_measurement(peak_bytes=peak_bytes)
    judged = judge(measured, LIMIT)
    assert judged.outcome is outcome
    assert (judged.peak_bytes, judged.step_seconds) == (measured.peak_bytes, measured.step_seconds)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_a_failure_keeps_its_name(make_measurement, outcome):
    """The limit changes the outcome of nothing but a good measurement."""
    failed = make_measurement(outcome, peak_bytes=2 * LIMIT)
    assert judge(failed, LIMIT) == failed


def test_no_fit_names_the_least_peak_and_what_it_would_take(make_trial, make_detection, make_space):
    """The limit it suggests holds the least peak and what a whole process adds, the batch is smaller and would fit."""
    plans = make_space().plans
    trials = [
        make_trial(Config(), outcome=Outcome.OVER_LIMIT, peak_bytes=900 * MIB),
        make_trial(Config.of(plans[:1]), outcome=Outcome.OVER_LIMIT, peak_bytes=700 * MIB + 1),
        make_trial(make_space().all_on, outcome=Outcome.OOM),
    ]
    text = explain_no_fit(trials, make_detection(resting_bytes=100 * MIB), LIMIT)
    assert plans[0].name in text
    assert "3 trials" in text
    assert 700 * MIB < parse_bytes(re.search(r"--memory-limit (\w+)", text)[1]) <= 740 * MIB
    batch = int(re.search(r"--target-batch (\d+)", text)[1])
    assert 0 < batch < 32
    assert 100 * MIB + batch / 32 * 600 * MIB <= LIMIT


def test_no_fit_without_any_peak_suggests_a_smaller_batch(make_trial, make_detection):
    """Where every config ran out of memory there is no least peak, so half the batch is worth a try."""
    text = explain_no_fit([make_trial(outcome=Outcome.OOM)], make_detection(batch=32), LIMIT)
    assert "--target-batch 16" in text


def test_no_fit_at_a_batch_of_one_does_not_suggest_a_batch_of_one(make_trial, make_detection):
    """There is no smaller batch than one."""
    text = explain_no_fit([make_trial(outcome=Outcome.OOM)], make_detection(batch=1), LIMIT)
    assert "--target-batch 1" not in text


def test_no_fit_after_failed_confirmations_suggests_a_higher_limit(make_trial, make_detection):
    """Where trials fitted and their confirmations did not, a limit below the present one is no way out."""
    trials = [make_trial(peak_bytes=580 * MIB)]
    text = explain_no_fit(trials, make_detection(resting_bytes=100 * MIB), LIMIT)
    assert all(parse_bytes(limit) > LIMIT for limit in re.findall(r"--memory-limit (\w+)", text))


def test_no_fit_without_any_trial_does_not_blame_the_batch(make_detection):
    """Where the time was over before the first trial, nothing is known about memory."""
    text = explain_no_fit([], make_detection(), LIMIT)
    assert "smaller batch" not in text
    assert "--timeout" in text


@pytest.mark.parametrize("outcome", [Outcome.OVER_LIMIT, Outcome.OOM])
def test_no_fit_of_a_model_with_nothing_to_recompute_says_so(make_trial, make_detection, outcome):
    """The reason follows what it would take, and is not told of a model that has plans."""
    trials = [make_trial(outcome=outcome, peak_bytes=None if outcome is Outcome.OOM else 900 * MIB)]
    assert explain_no_fit(trials, make_detection(plans=()), LIMIT).count("nothing worth recomputing") == 1
    large = Plan.parse("Gelu+:1:-1", frequency=1, saving_bytes=GIB, saving_symbolic=f"{GIB // 32}*batch")
    assert "worth recomputing" not in explain_no_fit(trials, make_detection(plans=(large,), batch=32), LIMIT)
