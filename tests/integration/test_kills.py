"""Processes that are killed at any moment, and a study that goes on."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import time

import psutil
import pytest

KILLS = 20
LONGEST_LIFE_SECONDS = 9.0
"""By then a tuning has started its script and is some trials into its search."""


def kill_a_worker(place, process):
    """Kills a process of the tuning other than the tuner."""
    workers = [worker for worker in place.processes() if worker.pid != process.pid]
    if workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            workers[-1].kill()


@pytest.fixture(scope="module")
def place(make_workplace):
    """A working directory in which processes are killed."""
    return make_workplace("killed")


@pytest.fixture(scope="module")
def start(place, hopeless):
    """Starts the command that never lives for long; its search does not see that nothing will fit."""
    return lambda: place.start_tuning(*hopeless, "--sampler", "greedy", "--max-trials", "8", "--json")


@pytest.fixture(scope="module")
def counts(place, start):
    """Trials in the database after each of the killings, which alternate between the worker and the tuner."""
    chance, counts = random.Random(7), []
    for number in range(KILLS):
        process = start()
        time.sleep(chance.uniform(0.1, LONGEST_LIFE_SECONDS))
        if number % 2:
            kill_a_worker(place, process)
            time.sleep(chance.uniform(0.1, 2))
        process.kill()
        finished = place.finish(process)
        assert finished.code in {4, -signal.SIGKILL}, finished.stderr
        place.wait_until(lambda: not place.processes())
        # There is no study yet, or no table in its database.
        with contextlib.suppress(ValueError, sqlite3.OperationalError):
            counts.append(place.study().count_rows())
    return counts


@pytest.fixture(scope="module")
def resumed(counts, place, start):
    """The same tuning, left alone at last."""
    assert counts
    return place.finish(start())


def test_no_trial_is_lost(counts):
    """Whatever is killed whenever, the trials of the database never become fewer."""
    assert counts == sorted(counts)


def test_the_study_ends_as_if_nothing_had_happened(resumed, place):
    """Left alone, the same command finishes the search, with as many trials as it was asked for."""
    assert resumed.code == 4, resumed.stderr
    assert len(set(place.study().configs)) == 8


def test_only_what_was_lost_is_measured_again(resumed, place):
    """No config was measured twice; one whose trial was killed was measured after that, unless it was killed again."""
    assert resumed.code == 4
    study = place.study()
    outcomes = {}
    for trial, config in zip(study.trials, study.configs, strict=True):
        outcomes.setdefault(config, []).append(trial["measurement"]["outcome"])
    for seen in outcomes.values():
        assert seen in (["over_limit"], ["lost", "over_limit"], ["lost", "lost"])
