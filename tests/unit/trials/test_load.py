"""What others do on the host during a trial."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from autorecompute.trials.load import TOO_SHORT_SECONDS, HostLoad, describe

BUSY = "print(flush=True)\nwhile True: pass"
IDLE = "import time; print(flush=True); time.sleep(600)"
HAS_BUSY_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"


@pytest.fixture
def start():
    """Starts a Python process that prints a line once it is at work; ends it with its children."""
    started = []

    def start(code):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        started.append(process)
        process.stdout.readline()
        return process.pid

    yield start
    for process in started:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for_work(pid):
    """Waits until the process and its children had half a second of the processors."""
    members = [psutil.Process(pid), *psutil.Process(pid).children()]
    goal = 0.5 + sum(member.cpu_times().user for member in members)
    while sum(member.cpu_times().user for member in members) < goal:
        time.sleep(0.05)


@pytest.mark.parametrize("code", [BUSY, HAS_BUSY_CHILD])
def test_the_workers_own_work_is_not_the_hosts(start, code):
    """A busy process counts as load beside an idle worker, and not where it is the worker or its child."""
    busy, idle = start(code), start(IDLE)
    as_worker, beside = HostLoad(busy), HostLoad(idle)
    wait_for_work(busy)
    assert beside.others() > as_worker.others() + 0.05


def test_a_moment_says_nothing(start):
    """Counters that have hardly moved are no load."""
    start(BUSY)
    assert HostLoad(start(IDLE)).others() == 0


@pytest.mark.parametrize(
    ("others", "cores", "marks"),
    [
        (1.4, 2, ("host busy: 1.4 of 2 cores by others",)),
        (0.1, 2, ()),
        (1.4, 64, ()),
        (60.0, 64, ("host busy: 60.0 of 64 cores by others",)),
    ],
)
def test_a_mark_says_how_busy_others_keep_the_host(others, cores, marks):
    """A tenth of all cores is nothing to tell; more is told in cores."""
    assert describe(others, cores) == marks


def test_a_worker_that_is_gone_leaves_no_mark():
    """Load is told with a measurement, and a worker that died has none."""
    with subprocess.Popen([sys.executable, "-c", IDLE], stdout=subprocess.PIPE) as worker:
        load = HostLoad(worker.pid)
        worker.kill()
    time.sleep(TOO_SHORT_SECONDS)
    assert load.marks() == ()
