"""A tuning that is stopped, and goes on."""

import re
import signal

import pytest

pytestmark = pytest.mark.usefixtures("cold_python")

SEARCH = ("--memory-limit", "410MiB", "--sampler", "greedy", "--max-trials", "5", "--json")
"""Nothing fits, and the search does not see it coming."""


def test_an_interruption_leaves_a_study_and_no_process_and_the_same_command_measures_nothing_of_it_twice(desk):
    """One tuning, stopped by one signal in its third trial, and by the other in its fourth."""
    for trials, number in ((2, signal.SIGTERM), (3, signal.SIGINT)):
        process = desk.start_tuning(*SEARCH, FAKE_FAULT=f"stand@{trials}")
        desk.wait_until(lambda trials=trials: desk.has_printed(f"stand at {trials}"))
        assert len(desk.processes()) == 2
        stopped = desk.stop(process, number)
        assert desk.processes() == []
        assert len(desk.study().trials) == trials
        assert stopped.code == stopped.answer["exit_code"] == 130
        assert re.search(rf"\b{trials} trials\b", stopped.complaint)
        assert "Traceback" not in stopped.stderr
    assert "after 2 trials" in stopped.stderr
    resumed = desk.tune(*SEARCH)
    assert resumed.code == 4, resumed.stderr
    study = desk.study()
    assert len(study.trials) == study.count_rows() == len(set(study.configs)) == 5
    least = min(trial["measurement"]["peak_bytes"] for trial in study.trials)
    assert f"{least / 2**20:.0f} MiB" in resumed.complaint


def test_an_interruption_before_the_first_trial_is_one_as_well(desk):
    process = desk.start_tuning("--json", FAKE_FAULT="stand@start")
    desk.wait_until(lambda: desk.has_printed("stand at start"))
    stopped = desk.stop(process, signal.SIGINT)
    assert stopped.code == 130
    assert "Traceback" not in stopped.stderr
    assert desk.processes() == []
