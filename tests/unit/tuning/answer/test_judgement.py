"""From trials to an answer, in words."""

import re
from dataclasses import replace

import pytest

from autorecompute.measurement import Outcome, Prediction
from autorecompute.plans import Config
from autorecompute.result import Rejection
from autorecompute.studies.records import RoundRecord
from autorecompute.training_job import ALLOCATOR, GIVES_BACK
from autorecompute.tuning.explanations import (
    explain_early_end,
    explain_no_fit,
    explain_too_few_trials,
    summarize_search,
)
from autorecompute.tuning.race import Finalist
from autorecompute.units import GIB, MIB, parse_bytes
from stand_ins.surveyed import Surveyed
from unit.conftest import build_detection, build_measurement, build_result, build_space, build_trial

LIMIT = 600 * MIB
NONE = Config()
PLANS = build_space().plans


def no_fit(*trials, excess=(), reasons=(), **detected):
    """What is said where trials had these peaks, ``None`` of no memory at all, and processes needed so much more."""
    told = []
    for config, peak_bytes in trials:
        fitted = Outcome.OVER_LIMIT if peak_bytes and peak_bytes > LIMIT else Outcome.OK
        told.append(build_trial(config, outcome=fitted if peak_bytes else Outcome.OOM, peak_bytes=peak_bytes))
    rejections = [
        Rejection(config=config, outcome=Outcome.OVER_LIMIT, reason="too much", excess_bytes=excess_bytes)
        for config, excess_bytes in dict(excess).items()
    ]
    return explain_no_fit(told, build_detection(**detected), LIMIT, reasons, rejections)


@pytest.mark.parametrize(
    ("outcome", "peak_bytes", "expected"),
    [
        (Outcome.OK, LIMIT, Outcome.OK),
        (Outcome.OK, LIMIT + 1, Outcome.OVER_LIMIT),
        *((failed, 2 * LIMIT, failed) for failed in Outcome if failed is not Outcome.OK),
    ],
)
def test_a_peak_may_reach_the_limit_and_a_failure_keeps_its_name_above_it(outcome, peak_bytes, expected):
    measured = build_measurement(outcome, peak_bytes=peak_bytes)
    judged = measured.under(LIMIT)
    assert judged == replace(measured, outcome=expected, message=judged.message)


def test_too_few_trials_name_the_preset_that_should_fit_or_what_was_rejected():
    lean, leaner, large = (
        Prediction(peak_bytes=size * MIB, peak_low=0, peak_high=0, step=None, step_low=None, step_high=None, fits=0.5)
        for size in (500, 400, 700)
    )
    text = explain_too_few_trials(1, LIMIT, {"half": lean, "blocks": leaner, "none": large})
    assert "found in 1 trial. The preset 'blocks' should hold it, with about 400 MiB" in text
    assert "--max-trials" in text
    unlikely = replace(leaner, fits=0.1)
    rejection = Rejection(config=NONE, outcome=Outcome.OVER_LIMIT, reason="its process reaches 640 MiB")
    text = explain_too_few_trials(2, LIMIT, {"none": large, "blocks": unlikely}, [rejection])
    assert "found in 2 trials. Not confirmed: its process reaches 640 MiB. Allow more trials with --max-trials" in text


def test_no_fit_suggests_half_the_batch_or_the_limit_that_a_whole_process_needs_or_names_another_reason():
    assert "--target-batch 16" in no_fit((NONE, None), batch=32)
    assert "--target-batch 1" not in no_fit((NONE, None), batch=1)
    text = no_fit((NONE, 580 * MIB), excess={NONE: None}, resting_bytes=100 * MIB)
    assert parse_bytes(re.search(r"--memory-limit (\w+)", text)[1]) > LIMIT
    one, two = Config.of(PLANS[:1]), Config.of(PLANS[:2])
    text = no_fit((NONE, LIMIT + 20 * MIB), (one, LIMIT - MIB), (two, LIMIT - 40 * MIB), excess={one: 50 * MIB})
    assert f"Try --memory-limit {LIMIT // MIB + 10}MiB." in text
    text = no_fit((NONE, LIMIT - 10 * MIB), excess={NONE: 30 * MIB})
    assert f"Try --memory-limit {(LIMIT + 20 * MIB) // MIB}MiB: without recompute it needs" in text
    reasons = ("blocks.*/gelu has wrong gradients", "blocks.*/cast has wrong gradients")
    text = no_fit((NONE, 580 * MIB), reasons=reasons)
    assert reasons[-1] in text
    assert "whole process" not in text
    assert "--memory-limit" not in text


def test_no_fit_without_any_peak_tells_the_batch_that_is_forecast_to_fit():
    survey = Surveyed.of("gpt2")
    memory, all_on = survey.memory, survey.space.all_on
    dims = {**memory.dims, "batch": 32}
    without, least = (memory.forecast(config, dims).peak_bytes for config in (NONE, all_on))
    detection = replace(build_detection(batch=32), dims=dims)
    text = explain_no_fit([build_trial(outcome=Outcome.OOM)], detection, least // 2, memory=memory)
    told = re.search(r"([\d.]+) (\wiB) is the least that is forecast, with", text)
    assert parse_bytes("".join(told.groups())) < 0.9 * without
    batch = int(re.search(r": --target-batch (\d+) should fit", text)[1])
    assert memory.forecast(all_on, {**dims, "batch": batch // 2}).peak_bytes < least // 2
    assert 0 < batch < 32


@pytest.mark.parametrize(("peak", "rejected"), [(LIMIT - MIB, True), (LIMIT + 10 * MIB, False)])
def test_no_fit_never_suggests_more_than_no_recompute_needs(peak, rejected):
    config = Config.of(PLANS)
    text = no_fit((NONE, LIMIT + 20 * MIB), (config, peak), excess={config: None} if rejected else {})
    needed = (LIMIT + 20 * MIB) // MIB
    assert f"Try --memory-limit {needed}MiB" in text
    assert f"without recompute it needs {needed} MiB" in text


@pytest.mark.parametrize(("kind", "tells"), [("cpu", True), ("cuda", False)])
def test_no_fit_after_failed_confirmations_on_a_cpu_names_what_glibc_keeps(monkeypatch, kind, tells):
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    device = replace(build_detection().device, kind=kind)
    assert ("MALLOC_MMAP_THRESHOLD_" in no_fit((NONE, 580 * MIB), excess={NONE: None}, device=device)) is tells
    tuned = {**build_detection().versions, ALLOCATOR: GIVES_BACK}
    assert "MALLOC_MMAP_THRESHOLD_" not in no_fit((NONE, 580 * MIB), excess={NONE: None}, device=device, versions=tuned)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    assert "MALLOC_MMAP_THRESHOLD_" not in no_fit((NONE, 580 * MIB), excess={NONE: None}, device=device)


def test_no_fit_names_the_least_peak_which_is_not_that_of_a_trial_that_failed():
    trials = [
        build_trial(Config.of(PLANS[:1]), outcome=Outcome.OVER_LIMIT, peak_bytes=700 * MIB),
        build_trial(outcome=Outcome.DIVERGED, peak_bytes=300 * MIB),
    ]
    text = explain_no_fit(trials, build_detection(resting_bytes=100 * MIB), LIMIT)
    assert "The least peak was 700 MiB" in text
    assert PLANS[0].label in text
    batch = int(re.search(r"by a rough estimate --target-batch (\d+)", text)[1])
    assert 0 < batch < 32
    assert 100 * MIB + batch / 32 * 600 * MIB <= LIMIT


@pytest.mark.parametrize(("reasons", "told"), [((), "out of memory"), (("crash: signal 11",), "crash: signal 11")])
def test_an_early_end_names_what_went_wrong_last_and_who_is_next(reasons, told):
    rejected, open_ = (build_trial(Config.of([plan]), peak_bytes=580 * MIB) for plan in PLANS[:2])
    rejection = Rejection(config=rejected.config, outcome=Outcome.OOM, reason="out of memory")
    text = explain_early_end([rejected, open_], build_detection(), LIMIT, reasons, [rejection])
    assert told in text
    assert f"not confirmed: {open_.description}." in text
    assert "time was over" not in text


@pytest.mark.parametrize("peak_bytes", [900 * MIB, None])
def test_no_fit_of_a_model_with_nothing_to_recompute_says_so(peak_bytes):
    assert no_fit((NONE, peak_bytes), plans=()).count("Nothing is worth recomputing") == 1
    large = replace(PLANS[0], saving_bytes=GIB, saving=f"{GIB // 32}*batch")
    assert "worth recomputing" not in no_fit((NONE, peak_bytes), plans=(large,), batch=32)


SLOW_SECONDS, FAST_SECONDS = 0.5, 0.4
SPENT_STEPS, LOST_SECONDS = 40, 1.95


def raced(config, seconds, number):
    trial = build_trial(config, number=number, step_seconds=(seconds,) * 3)
    return Finalist(trial=trial, rounds=(RoundRecord(step_seconds=(seconds,) * 3),) * 3)


def sentence_of(first, winner):
    """The sentence of a training that began with one config and ended with another, which is a fifth faster."""
    began, won = raced(first, SLOW_SECONDS, 0), raced(winner, FAST_SECONDS, 1)
    speed = {"samples_per_second": 32 / FAST_SECONDS, "relative_throughput": None, "confirmed": False}
    return summarize_search(
        best=build_result(winner, of_best=speed).best,
        limit_bytes=900 * MIB,
        trials=[won.trial, began.trial],
        first=began.trial,
        standings=[won, began],
        refused=[],
        spent_steps=SPENT_STEPS,
        spent_seconds=SPENT_STEPS * SLOW_SECONDS + LOST_SECONDS,
    )


def test_where_nothing_was_measured_no_limit_is_blamed():
    nothing = {"best": None, "trials": [], "first": None, "standings": [], "refused": []}
    spent = {"limit_bytes": 900 * MIB, "spent_steps": 2, "spent_seconds": 1.0}
    summary = summarize_search(**nothing, **spent, notes=["The next start tries more"])
    assert summary == "keeping the current config: none was measured. The next start tries more"


def test_no_recompute_is_called_that_and_trials_are_earned_back_by_the_gain():
    """Nearly two seconds were lost in 40 steps, and each step since gains a tenth of one: 20 steps more."""
    recompute = Config.of(build_space().plans[:1])
    assert sentence_of(recompute, Config()).startswith("no recompute, peak 700 MiB of 900 MiB")
    assert "1.25x of no recompute (700 MiB), which it began with" in sentence_of(Config(), recompute)
    told = sentence_of(Config.of(build_space().plans[:1]), Config())
    assert told.endswith(f"The trials are earned back after {SPENT_STEPS + 20} steps")
