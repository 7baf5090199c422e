"""Signals that come at a bad moment."""

from __future__ import annotations

import os
import signal

import pytest

from autorecompute.trials.signals import deferring_interrupts


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
