"""Limits of memory and of time on a real training."""

import itertools
import os
import re
import struct
import subprocess

from workplace import FREED_AT_ONCE, PLAIN_BATCH

HOUR = 3600
LONGEST_SECONDS = 2 * HOUR
"""Far longer than a step or a swap takes on any machine, and shorter than a jump of the clock."""


def test_a_limit_below_rest_ends_before_the_first_step(workplace):
    """What the script holds tells without a trial that no config can fit, and the plans are known by then."""
    limit = ("--backend", "torch", "--batch-flag=--bs", "--target-batch", "64", "--memory-limit", "64MiB")
    below_rest = workplace.tune("plain_transformer.py", *limit)
    assert below_rest.code == 4
    assert "no recompute can help" in below_rest.complaint
    assert re.search(r"\b[1-9]\d* plans\b", below_rest.stderr)
    assert not re.search(r"^step ", workplace.study().logs[0], re.MULTILINE)


def test_a_clock_that_jumps_uses_up_no_time_and_no_step_takes_hours_or_less_than_nothing(
    make_workplace, scripts, plain_limit_bytes
):
    """The script sets the wall clock forward and back by hours in every step."""
    place = make_workplace("clock", **FREED_AT_ONCE)
    library, shift = place.path / "wall_clock.so", place.path / "shift"
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, scripts / "wall_clock.cpp"], check=True)
    shift.write_bytes(struct.pack("q", 5 * HOUR))
    options = ("--backend", "torch", "--memory-limit", str(plain_limit_bytes), "--max-trials", "3", "--timeout", "4h")
    clock = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(shift)}
    finished = place.tune("jumping_clock.py", *options, "--json", arguments=("--bs", str(PLAIN_BATCH)), **clock)
    assert finished.code == 0, finished.stderr
    study = place.study()
    seen = [float(seconds) for seconds in re.findall(r"^it is (\S+)$", max(study.logs, key=len), re.MULTILINE)]
    jumps = [later - earlier for earlier, later in itertools.pairwise(seen)]
    assert max(jumps) > 11 * HOUR
    assert min(jumps) < -18 * HOUR
    assert finished.answer["best"]["confirmed"]
    assert 0 < finished.answer["wall_seconds"] < finished.seconds
    trials = study.trials
    assert len(trials) > 1
    seconds = [seconds for trial in trials for seconds in trial["measurement"]["step_seconds"]]
    seconds += [trial["measurement"]["warmup_seconds"] for trial in trials]
    seconds += [trial["overhead_seconds"] for trial in trials]
    assert all(0 < second < LONGEST_SECONDS for second in seconds)
