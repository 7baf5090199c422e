"""Processes that are killed at chosen points, and a study that goes on."""

import contextlib
import signal
import sqlite3

import pytest

BEFORE = {
    "the script is started": ("subprocess.Popen", "transformer.py"),
    "the study is begun": ("os.rename", "study.json"),
}
AFTER = {
    "a trial is in the database, and nothing of it in its folder": ("os.mkdir", "trials/0001"),
    "a trial has half a folder": ("os.rename", "trials/0002/result.json"),
    "a trial has all of its folder, and is not known as ended": ("os.remove", "in_progress.json"),
}
"""Where the tuner is killed: what it is about to do, and to which file; before its first trial, and when it has one."""

BEGINS = ("os.rename", "in_progress.json")
"""What it does when a trial begins."""

TRIALS = 8


@pytest.fixture(scope="module")
def place(make_workplace):
    """A working directory in which processes are killed."""
    return make_workplace("killed")


@pytest.fixture(scope="module")
def command(place, hopeless):
    """The command that never lives for long; its search does not see that nothing will fit."""
    return place.tuning(*hopeless, "--sampler", "greedy", "--max-trials", str(TRIALS), "--json")


@pytest.fixture(scope="module")
def start(place, scripts, command):
    """Starts the command; at the point that is given, a signal goes to the tuner or to its script."""
    return lambda point, *signalled: place.start(str(scripts / "dying.py"), *point, *signalled, *command[2:])


def kill_in_a_trial(place, process):
    """Kills a tuner whose script stands still in a trial."""
    place.wait_until(lambda: process.poll() is not None or any(place.path.glob("studies/*/in_progress.json")))
    process.kill()


def rows_after(place, process):
    """Trials in the database when a killed tuner and its script are gone; none where it has no table yet."""
    finished = place.finish(process)
    assert finished.code == -signal.SIGKILL, finished.stderr
    place.wait_until(lambda: not place.processes())
    with contextlib.suppress(ValueError, sqlite3.OperationalError):
        return place.study().count_rows()
    return 0


@pytest.fixture(scope="module")
def counts(place, start):
    """Trials in the database after each session, of which one is killed at each of the points, and one in a trial."""
    before = [rows_after(place, start(point, "SIGKILL", "self")) for point in BEFORE.values()]
    process = start(BEGINS, "SIGSTOP", "script")
    kill_in_a_trial(place, process)
    within = rows_after(place, process)
    after = [rows_after(place, start(point, "SIGKILL", "self")) for point in AFTER.values()]
    return [*before, within, *after]


@pytest.fixture(scope="module")
def resumed(counts, place, start):
    """The same tuning, left alone at last, but that its script is killed as a trial begins."""
    assert counts
    return place.finish(start(BEGINS, "SIGKILL", "script"))


def test_no_trial_is_lost(counts):
    """Wherever the tuner is killed, the trials of the database never become fewer."""
    assert counts == sorted(counts)
    assert counts == [0, 0, 0, 2, 3, 3]


def test_the_study_ends_as_if_nothing_had_happened(resumed, place):
    """Left alone, the same command finishes the search, with as many configs as it was asked for."""
    assert resumed.code == 4, resumed.stderr
    assert len(set(place.study().configs)) == TRIALS


def test_only_what_was_lost_is_measured_again(resumed, place):
    """No config was measured twice; one whose trial was killed was measured after that, unless it was killed again."""
    assert resumed.code == 4
    study = place.study()
    outcomes = {}
    for trial, config in zip(study.trials, study.configs, strict=True):
        outcomes.setdefault(config, []).append(trial["measurement"]["outcome"])
    for seen in outcomes.values():
        assert seen in (["over_limit"], ["lost", "over_limit"], ["lost", "lost"])
    assert ["lost", "over_limit"] in outcomes.values()
