"""The vocabulary of trials: what is derived from what was measured."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from autorecompute.errors import (
    AutorecomputeError,
    InterruptedByUser,
    NothingFitsError,
    ScriptError,
    SetupError,
    UsageError,
)
from autorecompute.figures import Figures, comparable_steps
from autorecompute.measurement import Measurement, Outcome


def test_throughput_is_that_of_the_median_step(make_measurement):
    """One slow step among three does not change the throughput."""
    assert make_measurement(step_seconds=(0.5, 9.0, 0.25), samples=8).samples_per_second == 16


def test_every_outcome_is_in_the_reference():
    """The table of outcomes that users read has each of them once, and no other."""
    page = (Path(__file__).parents[2] / "docs" / "outcomes.md").read_text()
    table = page.partition("\n## Outcomes of a trial\n")[2].partition("\n### ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [str(outcome) for outcome in Outcome]


def test_what_was_not_measured_is_none():
    """Without steps there is no step time and no throughput, rather than 0 or infinity."""
    failed = Measurement(outcome=Outcome.OOM, samples=8)
    assert (failed.median_step_seconds, failed.samples_per_second, failed.peak_bytes) == (None, None, None)


@pytest.mark.parametrize(("reference_seconds", "step_seconds", "ratio"), [(0.5, (1.0,), 0.5), (None, (1.0,), None)])
def test_relative_throughput_needs_both(make_trial, reference_seconds, step_seconds, ratio):
    """A config twice as slow as the reference has half its throughput; without one there is no figure."""
    trial = make_trial(reference_seconds=reference_seconds, step_seconds=step_seconds)
    assert trial.relative_throughput == ratio


@pytest.mark.parametrize(("others", "is_reference_disturbed"), [(0.5, False), (0.0, True)])
def test_relative_throughput_of_a_disturbed_trial_is_that_of_processor_time(make_trial, others, is_reference_disturbed):
    """Wall time says how much of the processors others had, on whichever side they had it."""
    measured = make_trial(reference_seconds=1.0, step_seconds=(1.0,), cpu_seconds=(4.0,), others_share=others)
    trial = replace(measured, reference_cpu_seconds=3.0, is_reference_disturbed=is_reference_disturbed)
    assert trial.relative_throughput == 0.75


def test_a_gpus_steps_are_not_disturbed_by_a_busy_host(make_measurement):
    """There is no processor time to compare there: the steps are taken as they are."""
    assert not make_measurement(others_share=0.9).is_disturbed


def test_steps_are_compared_on_one_clock(make_measurement):
    """One disturbed measurement takes all to processor time, where all have it."""
    calm = make_measurement(step_seconds=(1.0,), cpu_seconds=(2.0,), others_share=0.0)
    busy = make_measurement(step_seconds=(9.0,), cpu_seconds=(3.0,), others_share=0.7)
    assert comparable_steps([calm, busy]) == [2.0, 3.0]
    assert comparable_steps([calm, calm]) == [1.0, 1.0]
    assert comparable_steps([busy, make_measurement(step_seconds=(4.0,)), make_measurement(Outcome.OOM)]) == [
        9,
        4,
        None,
    ]


def test_only_a_measured_peak_within_the_limit_fits(make_trial):
    """Every outcome but a good one does not fit; memory is to blame for two of them, and two have figures."""
    assert [outcome for outcome in Outcome if make_trial(outcome=outcome).fits] == [Outcome.OK]
    assert {outcome for outcome in Outcome if outcome.is_about_memory} == {Outcome.OOM, Outcome.OVER_LIMIT}
    assert {outcome for outcome in Outcome if outcome.is_measured} == {Outcome.OK, Outcome.OVER_LIMIT}


def test_figures_of_no_trial_are_empty(make_trial):
    """A preset that was never tried has no outcome; one that was has its trial's figures."""
    assert Figures.of(None) == Figures(outcome=None)
    assert Figures.of(make_trial(peak_bytes=7, samples=4, step_seconds=(2.0,), batch=4)) == Figures(
        outcome=Outcome.OK, samples_per_second=2.0, peak_bytes=7, batch=4
    )


def test_each_error_has_its_exit_code():
    """The exit codes of the contract are all different, and none is 0."""
    kinds = (UsageError, SetupError, NothingFitsError, ScriptError, InterruptedByUser)
    assert [kind.exit_code for kind in kinds] == [2, 3, 4, 5, 130]
    assert all(issubclass(kind, AutorecomputeError) for kind in kinds)
