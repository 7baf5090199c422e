import math
import os
import signal

import pytest

from autorecompute import waiting
from autorecompute.waiting import INTERRUPTS, OutOfTime, ending_at, interruptible, left_seconds, pause, raise_if_over


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


def send(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", INTERRUPTS)
def test_an_interruption_waits_for_the_next_wait(number):
    finished = False
    with interruptible():
        send(number)
        finished = True
        with pytest.raises(KeyboardInterrupt):
            pause(60)
    assert finished


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", INTERRUPTS)
def test_an_interruption_in_a_finalizer_is_not_lost(number):
    """Python drops an exception that is raised in a finalizer; nothing is raised there."""

    class Finalized:
        def __del__(self):
            send(number)

    with interruptible():
        Finalized()
        with pytest.raises(KeyboardInterrupt):
            raise_if_over()


def test_a_second_interruption_is_none():
    before = [signal.getsignal(number) for number in INTERRUPTS]
    with interruptible():
        send(signal.SIGINT, signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            raise_if_over()
        send(signal.SIGINT, signal.SIGTERM)
        pause(0.001)
    assert [signal.getsignal(number) for number in INTERRUPTS] == before


def test_an_interruption_after_the_last_wait_is_raised_at_the_end_and_hides_no_error():
    with pytest.raises(KeyboardInterrupt), interruptible():
        send(signal.SIGTERM)
    with interruptible():
        raise_if_over()

    def fail_after_an_interruption():
        with interruptible():
            send(signal.SIGINT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_an_interruption()
    raise_if_over()


def test_a_pause_ends_at_the_deadline_and_a_time_that_is_over_ends_every_wait(clock):
    began = clock.now
    with ending_at(began + 10):
        pause(3)
        with pytest.raises(OutOfTime):
            pause(60)
    assert clock.now - began == 10
    assert left_seconds() == math.inf
    with ending_at(clock.now - 1):
        assert left_seconds() == 0
        for _ in range(2):
            with pytest.raises(OutOfTime):
                raise_if_over()
    raise_if_over()
    # The earlier of two deadlines counts.
    for outer, inner in ((1000, 2000), (2000, 1000)):
        with ending_at(clock.now + outer):
            with ending_at(clock.now + inner):
                assert left_seconds() == 1000
            assert left_seconds() == outer
