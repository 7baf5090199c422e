"""What others do on the host while a script is measured."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from autorecompute.meters.processors import TOO_SHORT_SECONDS, Processors

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
def test_what_the_tuning_does_is_not_others_work(start, code):
    """A busy process counts as others' beside an idle tuner, and not where it is the tuner or its child."""
    busy, idle = start(code), start(IDLE)
    as_tuner, beside = Processors(busy, do_the_work=True), Processors(idle, do_the_work=True)
    wait_for_work(busy)
    assert beside.others_share() > as_tuner.others_share() + 0.05


def test_a_moment_says_nothing(start):
    """Counters that have hardly moved are no load."""
    start(BUSY)
    assert Processors(start(IDLE), do_the_work=True).others_share() is None


def test_a_tuner_that_is_gone_leaves_no_figure():
    """Nobody can tell whose work is whose then."""
    with subprocess.Popen([sys.executable, "-c", IDLE], stdout=subprocess.PIPE) as tuner:
        processors = Processors(tuner.pid, do_the_work=True)
        tuner.kill()
    time.sleep(TOO_SHORT_SECONDS)
    assert processors.others_share() is None


def test_waiting_takes_no_processor_time():
    """The process's own time grows while it works, and not while it sleeps."""
    processors = Processors(os.getpid(), do_the_work=True)
    began = processors.own_seconds()
    time.sleep(0.3)
    slept = processors.own_seconds()
    while processors.own_seconds() < slept + 0.05:
        pass
    assert slept - began < 0.1


def test_a_card_that_does_the_work_leaves_the_processors_time_untold():
    """What the processors do while a GPU trains says nothing of a step."""
    assert Processors(os.getpid(), do_the_work=False).own_seconds() is None
