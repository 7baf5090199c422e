"""A tuning that is stopped, and goes on."""

import re
import signal
from dataclasses import dataclass

import pytest

pytestmark = pytest.mark.usefixtures("cold_python")

SEARCH = ("--memory-limit", "410MiB", "--sampler", "greedy", "--max-trials", "5", "--json")
"""Nothing fits, and the search does not see it coming."""


@dataclass(frozen=True)
class Stop:
    finished: object
    running: list
    left: list


@pytest.fixture(scope="module")
def stops(place):
    """One tuning, stopped by one signal in its third trial, and by the other in its fourth."""
    stops = {}
    for trials, number in ((2, signal.SIGTERM), (3, signal.SIGINT)):
        process = place.start_tuning(*SEARCH, FAKE_FAULT=f"stand@{trials}")
        place.wait_until(lambda trials=trials: place.has_printed(f"stand at {trials}"))
        running = place.processes()
        stops[number] = Stop(place.stop(process, number), running, place.processes())
        assert len(place.study().trials) == trials
    return stops


@pytest.fixture(scope="module")
def resumed(stops, place):
    assert stops
    return place.tune(*SEARCH)


@pytest.mark.parametrize(("number", "trials"), [(signal.SIGTERM, 2), (signal.SIGINT, 3)])
def test_an_interruption_keeps_the_study_says_so_and_leaves_no_process(stops, number, trials):
    stop = stops[number]
    assert stop.finished.code == stop.finished.answer["exit_code"] == 130
    assert re.search(rf"\b{trials} trials\b", stop.finished.complaint)
    assert "Traceback" not in stop.finished.stderr
    assert len(stop.running) == 2
    assert stop.left == []


def test_the_same_command_finishes_what_was_interrupted_and_measures_nothing_twice(stops, resumed, place):
    assert "after 2 trials" in stops[signal.SIGINT].finished.stderr
    assert resumed.code == 4, resumed.stderr
    study = place.study()
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
