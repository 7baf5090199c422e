"""Waits that end at a deadline, or by a signal that comes at a bad moment."""

import math
import os
import signal
import threading
import time

import pytest

from autorecompute.waiting import INTERRUPTS, OutOfTime, ending_at, interruptible, left_seconds, pause, raise_if_over


def send(*numbers):
    """Sends signals to this process."""
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", INTERRUPTS)
def test_an_interruption_waits_for_the_next_wait(number):
    """What was begun is finished; the interruption is raised where the command waits."""
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
    """Whoever presses Ctrl-C again while the command ends disturbs nothing, be there another wait."""
    before = [signal.getsignal(number) for number in INTERRUPTS]
    with interruptible():
        send(signal.SIGINT, signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            raise_if_over()
        send(signal.SIGINT, signal.SIGTERM)
        pause(0.001)
    assert [signal.getsignal(number) for number in INTERRUPTS] == before


def test_an_interruption_after_the_last_wait_is_raised_at_the_end():
    """A command that waits no more is interrupted all the same, and the next one is not."""
    with pytest.raises(KeyboardInterrupt), interruptible():
        send(signal.SIGTERM)
    with interruptible():
        raise_if_over()


def test_an_error_is_not_hidden_by_an_interruption():
    """What the block fails with is what there is to tell."""

    def fail_after_an_interruption():
        with interruptible():
            send(signal.SIGINT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_an_interruption()
    raise_if_over()


def test_a_pause_ends_at_the_deadline():
    """Nothing waits longer than the command may take."""
    began = time.monotonic()
    with ending_at(began + 0.05):
        pause(0.001)
        with pytest.raises(OutOfTime):
            pause(60)
    assert time.monotonic() - began < 30
    assert left_seconds() == math.inf


def test_a_time_that_is_over_ends_every_wait():
    """It is over for each wait that follows, not only for the first one."""
    with ending_at(time.monotonic() - 1.0):
        assert left_seconds() == 0
        for _ in range(2):
            with pytest.raises(OutOfTime):
                raise_if_over()
    raise_if_over()


@pytest.mark.parametrize(("outer", "inner"), [(1000.0, 2000.0), (2000.0, 1000.0)])
def test_the_earlier_of_two_deadlines_counts(outer, inner):
    """A block within another one has what is left of the other's time at most, and leaves it the rest."""
    now = time.monotonic()
    with ending_at(now + outer):
        with ending_at(now + inner):
            assert 0 < left_seconds() <= 1000
        assert outer - 500 < left_seconds() <= outer


def test_a_deadline_is_that_of_one_thread():
    """A thread that keeps a worker alive in its storage does not end with the time of a wait elsewhere."""
    seen = []
    thread = threading.Thread(target=lambda: seen.append(left_seconds()))
    with ending_at(time.monotonic() - 1.0):
        thread.start()
        thread.join()
    assert seen == [math.inf]
