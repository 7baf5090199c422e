import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autorecompute.figures import comparable_steps
from autorecompute.measurement import Outcome


def test_throughput_is_that_of_the_median_step_and_steps_are_compared_on_one_clock(make_measurement):
    assert make_measurement(step_seconds=(0.5, 9.0, 0.25), samples=8).samples_per_second == 16
    assert not make_measurement(others_share=0.9).is_disturbed
    calm = make_measurement(step_seconds=(1.0,), cpu_seconds=(2.0,), others_share=0.0)
    busy = make_measurement(step_seconds=(9.0,), cpu_seconds=(3.0,), others_share=0.7)
    assert comparable_steps([calm, busy]) == [2.0, 3.0]
    assert comparable_steps([calm, calm]) == [1.0, 1.0]
    assert comparable_steps([busy, make_measurement(step_seconds=(4.0,)), make_measurement(Outcome.OOM)]) == [
        9,
        4,
        None,
    ]


def test_every_outcome_is_in_the_reference():
    page = (Path(__file__).parents[2] / "docs" / "outcomes.md").read_text()
    table = page.partition("\n## Outcomes of a trial\n")[2].partition("\n### ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [str(outcome) for outcome in Outcome]


@pytest.mark.parametrize(("reference_seconds", "ratio"), [(0.5, 0.5), (None, None)])
def test_relative_throughput_needs_both(make_trial, reference_seconds, ratio):
    assert make_trial(reference_seconds=reference_seconds, step_seconds=(1.0,)).relative_throughput == ratio


@pytest.mark.parametrize(("others", "is_reference_disturbed"), [(0.5, False), (0.0, True)])
def test_relative_throughput_of_a_disturbed_trial_is_that_of_processor_time(make_trial, others, is_reference_disturbed):
    measured = make_trial(reference_seconds=1.0, step_seconds=(1.0,), cpu_seconds=(4.0,), others_share=others)
    trial = replace(measured, reference_cpu_seconds=3.0, is_reference_disturbed=is_reference_disturbed)
    assert trial.relative_throughput == 0.75


ON_ONE_CORE = """
import os, torch
from autorecompute.backends.common import describe_device

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(describe_device(torch.device("cpu")).name)
"""


def test_a_processor_has_the_cores_that_the_process_may_use():
    told = subprocess.run([sys.executable, "-c", ON_ONE_CORE], capture_output=True, text=True, check=True).stdout
    assert told.strip().endswith(", 1 cores")
