"""Signals that come at a bad moment."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from autorecompute.trials.signals import (
    INTERRUPTS,
    OutOfTime,
    alarmed_after,
    deferring_interrupts,
    ignoring_interrupts,
    interruptible,
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_waits_for_the_end_of_the_block(number):
    """What the block has begun it finishes; then the signal arrives where it would have."""
    arrived, finished = [], False
    before = signal.signal(number, lambda number, _: arrived.append(number))
    try:
        with deferring_interrupts():
            os.kill(os.getpid(), number)
            finished = not arrived
        assert finished
        assert arrived == [number]
    finally:
        signal.signal(number, before)


def test_a_second_interruption_is_none():
    """Whoever presses Ctrl-C twice stops once: what comes while the first is on its way is ignored."""
    before = [signal.getsignal(number) for number in INTERRUPTS]
    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
    assert [signal.getsignal(number) for number in INTERRUPTS] == before


def test_a_signal_that_waited_still_ends_only_once():
    """What came during a block that must not be disturbed interrupts after it, and what comes then does not."""

    def interrupt_twice():
        with deferring_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)

    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            interrupt_twice()
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_that_a_finalizer_swallowed_comes_again(number):
    """An exception in a finalizer is lost; the interruption is not."""

    class Finalized:
        def __del__(self):
            os.kill(os.getpid(), number)

    with interruptible():
        Finalized()
        with pytest.raises(KeyboardInterrupt):
            threading.Event().wait(60)


def test_an_interruption_that_was_taken_does_not_come_again():
    """What is done about it is not interrupted, neither by the reminder nor by another signal."""
    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with ignoring_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_alarm_ends_what_waits():
    """Whatever the block waits for, it ends when the time is over, as by an interruption."""
    before, began = signal.getsignal(signal.SIGALRM), time.monotonic()
    with pytest.raises(OutOfTime), alarmed_after(0.05):
        threading.Event().wait(60)
    assert time.monotonic() - began < 30
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_time_that_is_over_ends_at_once():
    """There is no timer of less than no time, and the block is ended all the same."""
    with pytest.raises(OutOfTime), alarmed_after(-1.0):
        threading.Event().wait(60)


def test_no_alarm_rings_after_its_block():
    """What ended in time is not interrupted later."""
    with alarmed_after(0.05):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_alarm_that_a_finalizer_swallowed_rings_again():
    """The time that is over stays so."""

    class Finalized:
        def __del__(self):
            threading.Event().wait(0.2)

    def swallow_and_wait():
        Finalized()
        threading.Event().wait(60)

    with pytest.raises(OutOfTime), alarmed_after(0.05):
        swallow_and_wait()


def test_an_alarm_within_an_alarm_rings_first_and_leaves_the_other_its_time():
    """The inner block is ended by its own clock, and the outer one by what is left of the other."""

    def sleep_within():
        with pytest.raises(OutOfTime), alarmed_after(0.1):
            time.sleep(5)
        assert time.monotonic() - began < 0.4
        time.sleep(5)

    began = time.monotonic()
    with pytest.raises(OutOfTime), alarmed_after(0.5):
        sleep_within()
    assert 0.5 <= time.monotonic() - began < 2
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
