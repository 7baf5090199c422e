"""A wall clock that is set while a tuning runs: forward and back, by hours, in every step."""

import itertools
import json
import os
import re
import signal
import struct
import subprocess
import time
from datetime import datetime

import pytest

from workplace import FREED_AT_ONCE, PLAIN_BATCH

HOUR = 3600
LONGEST_SECONDS = 600
"""Far longer than a step or a swap takes, far shorter than a jump."""


@pytest.fixture(scope="module")
def place(make_workplace):
    """A working directory in which the clock cannot be relied on."""
    return make_workplace("clock", **FREED_AT_ONCE)


@pytest.fixture(scope="module")
def start(place, scripts, plain_limit_bytes):
    """Starts the tuning under a timeout; its tuner and all that it starts have a wall clock that can be set."""
    library, shift = place.path / "wall_clock.so", place.path / "shift"
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, scripts / "wall_clock.cpp"], check=True)
    limit = ("--memory-limit", str(plain_limit_bytes), "--max-trials", "4")
    command = ("jumping_clock.py", "--backend", "torch", *limit)

    def start(study, timeout, *more):
        shift.write_bytes(struct.pack("q", 5 * HOUR))
        options = (*command, "--study", study, "--timeout", timeout, "--json", *more)
        clock = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(shift)}
        return place.start_tuning(*options, arguments=("--bs", str(PLAIN_BATCH)), **clock)

    return start


@pytest.fixture(scope="module")
def interrupted(place, start):
    """The tuning, stopped after two trials; and how long it took by a clock that nobody sets."""
    began, process = time.monotonic(), start("jumping", "4h")
    place.wait_for_trials(process, 2)
    process.send_signal(signal.SIGINT)
    return place.finish(process), time.monotonic() - began


@pytest.fixture(scope="module")
def resumed(interrupted, place, start):
    """The same command, left alone; and how long both took."""
    began = time.monotonic()
    return place.finish(start("jumping", "4h")), interrupted[1] + time.monotonic() - began


@pytest.fixture(scope="module")
def trials(resumed, place):
    """The trials of both."""
    assert resumed[0].code == 0, resumed[0].stderr
    return place.study("jumping").trials


def test_the_clock_jumps(trials, place):
    """The tuner begins its study hours ago, and the script sees the clock go forward and back by hours."""
    assert trials
    study = place.study("jumping")
    created = datetime.fromisoformat(json.loads((study.path / "study.json").read_text())["created"])
    assert time.time() - created.timestamp() > 6 * HOUR
    seen = [float(seconds) for seconds in re.findall(r"^it is (\S+)$", max(study.logs, key=len), re.MULTILINE)]
    jumps = [later - earlier for earlier, later in itertools.pairwise(seen)]
    assert max(jumps) > 11 * HOUR
    assert min(jumps) < -18 * HOUR


def test_an_interrupted_tuning_goes_on(interrupted, resumed):
    """A study whose sessions lie hours apart comes to its answer, and no jump forward uses up its time."""
    assert interrupted[0].code == 130, interrupted[0].stderr
    finished, _ = resumed
    assert finished.code == 0, finished.stderr
    assert re.search(r"after [23] trials", finished.stderr)
    assert finished.answer["best"]["confirmed"]
    assert finished.answer["search_end"] == "trials"


def test_every_trial_is_measured(trials):
    """No trial is said to hang or to take too long, and no step took hours, or less than nothing."""
    assert {trial["measurement"]["outcome"] for trial in trials} == {"ok", "over_limit"}
    seconds = [seconds for trial in trials for seconds in trial["measurement"]["step_seconds"]]
    seconds += [trial["measurement"]["warmup_seconds"] for trial in trials]
    seconds += [trial["overhead_seconds"] for trial in trials]
    assert all(0 < second < LONGEST_SECONDS for second in seconds)


def test_the_time_it_took_is_told(resumed):
    """The time in the answer is that of both sessions, by a clock that nobody sets."""
    finished, seconds = resumed
    assert 0 < finished.answer["wall_seconds"] < seconds


def test_a_timeout_is_kept_while_the_clock_goes_back(place, start):
    """A timeout ends the command although the clock is put back by twelve hours before the first step."""
    began = time.monotonic()
    late = place.finish(start("late", "4s", "--fresh"))
    assert late.code == 4, late.stderr
    assert "--timeout" in late.complaint
    assert time.monotonic() - began < 60
