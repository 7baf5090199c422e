"""Limits of memory and of time on a real training, and the peak of a fresh process as it is by hand."""

import itertools
import os
import re
import struct
import subprocess

import pytest

from autorecompute.errors import NothingFitsError
from autorecompute.measurement import Outcome
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.units import MIB
from workplace import FREED_AT_ONCE, PLAIN_BATCH

HOUR = 3600
LONGEST_SECONDS = 2 * HOUR
"""Far longer than a step or a swap takes on any machine, and shorter than a jump of the clock."""

MODULES_BYTES = 24 * MIB
"""Hold what this tool's own modules take beside the script."""


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


def test_what_a_process_held_before_it_trained_counts(tmp_path, scripts, workplace):
    """A limit knows no reset: the confirmed peak is what the process reaches by hand, wherever it reaches it."""
    by_hand = workplace.finish(workplace.start(str(scripts / "spiking.py"))).printed_peak_bytes
    with Bench(Job(script=scripts / "spiking.py"), None, tmp_path) as bench:
        measured = bench.watch({}, Effort(warmup=1, steps=2), None)
    assert (measured.outcome, measured.message) == (Outcome.OK, "")
    assert measured.peak_bytes == pytest.approx(by_hand, abs=MODULES_BYTES)
    assert measured.before_bytes == measured.peak_bytes


def test_what_loads_the_model_is_named_where_it_alone_breaks_the_limit(workplace):
    """No recompute helps there: the user is told where the process holds most."""
    tuned = workplace.tune("spiking.py", "--memory-limit", "500MiB", "--max-trials", "1")
    assert tuned.code == NothingFitsError.exit_code
    assert "before its first step: what loads the model, or exports it, takes more than training" in tuned.complaint
