"""Processes that are killed at chosen points, and a study that goes on."""

import contextlib
import signal
import sqlite3
from pathlib import Path

import pytest

DYING = Path(__file__).with_name("dying.py")
TESTS = str(Path(__file__).parents[1])
BEFORE = {
    "the script is started": ("subprocess.Popen", "trainer.py"),
    "the study is begun": ("os.rename", "study.json"),
}
AFTER = {
    "a trial is in the database, and nothing of it in its folder": ("os.mkdir", "trials/0001"),
    "a trial has half a folder": ("os.rename", "trials/0002/result.json"),
    "a trial has all of its folder, and is not known as ended": ("os.remove", "in_progress.json"),
}
"""Where the tuner is killed: what it is about to do, and to which file; before its first trial, and when it has one."""

TRIALS = 8
SEARCH = ("--memory-limit", "410MiB", "--sampler", "greedy", "--max-trials", str(TRIALS), "--json")


def rows_after(place, process):
    """Trials in the database when a killed tuner and its script are gone; none where it has no table yet."""
    finished = place.finish(process)
    assert finished.code == -signal.SIGKILL, finished.stderr
    place.wait_until(lambda: not place.processes())
    with contextlib.suppress(ValueError, sqlite3.OperationalError):
        return place.study().count_rows()
    return 0


@pytest.fixture(scope="module")
def counts(place):
    """Trials in the database after each session, of which one is killed at each of the points, and one in a trial."""

    def die(point):
        return rows_after(place, place.start(DYING, *point, *place.tuning(*SEARCH)[1:], PYTHONPATH=TESTS))

    before = [die(point) for point in BEFORE.values()]
    process = place.start_tuning(*SEARCH, FAKE_FAULT="stand@0")
    place.wait_until(lambda: place.has_printed("stand at 0"))
    process.kill()
    return [*before, rows_after(place, process), *map(die, AFTER.values())]


@pytest.fixture(scope="module")
def resumed(counts, place):
    """The same tuning, left alone at last, but that its script is killed in a trial."""
    return place.tune(*SEARCH, FAKE_FAULT=f"SIGKILL@{counts[-1]}")


def test_no_trial_is_lost(counts):
    assert counts == [0, 0, 0, 2, 3, 3]


def test_the_study_ends_as_if_nothing_had_happened(resumed, place):
    assert resumed.code == 4, resumed.stderr
    assert len(set(place.study().configs)) == TRIALS


def test_only_what_was_lost_is_measured_again(resumed, place):
    assert resumed.code == 4
    study = place.study()
    outcomes = {}
    for trial, config in zip(study.trials, study.configs, strict=True):
        outcomes.setdefault(config, []).append(trial["measurement"]["outcome"])
    assert all(seen in (["over_limit"], ["lost", "over_limit"]) for seen in outcomes.values())
    assert ["lost", "over_limit"] in outcomes.values()
